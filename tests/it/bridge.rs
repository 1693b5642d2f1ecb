//! The bridge matrix: seven client variants against seven server variants, and every feature between them.
//!
//! `known_limits` lists what cannot be carried across revisions and the fallback, which is checked, too.
//! docs/bridging.md shows the matrix and the limits, the README a summary.

mod all_in_one_group;
mod both_wires;
mod bridged_tasks;
mod cancelled_server_requests;
mod client;
mod feature_checks;
mod handlers;
mod known_limits;
mod observability;
mod owned_tasks;
mod parked_calls;
mod reference_servers;
mod scripted_server;
mod scripted_tasks;
mod sdk_pairs;
mod server_endpoint;
mod tasks;
mod unassociated_requests;
mod variants;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::upstream::{SpecKind, UpstreamSpec};

use self::client::{Checked, Client};
use self::feature_checks::Cell;
use self::known_limits::{mark, matrix, summary, table};
use self::server_endpoint::ServerEndpoint;
use self::variants::{Feature, Transport, VARIANTS, Variant};
use crate::harness::Rialto;

/// A gateway with one group per server and one group of all servers.
pub struct Testbed {
    pub rialto: Rialto,
    pub endpoints: Vec<ServerEndpoint>,
}

impl Testbed {
    pub async fn open(forms: &[Variant]) -> Self {
        Self::with(forms, |_| {}).await
    }

    pub async fn with(forms: &[Variant], change: impl FnOnce(&mut rialto::app::AppSettings)) -> Self {
        let endpoints =
            futures_util::future::join_all(forms.iter().map(|variant| ServerEndpoint::open(*variant))).await;
        let rialto = Rialto::with(|settings| {
            settings.gateway = GatewayConfig {
                upstreams: endpoints.iter().map(ServerEndpoint::spec).collect(),
                groups: groups(forms),
            };
            change(settings);
        })
        .await;
        Self { rialto, endpoints }
    }

    /// Connects a client to a group; a stdio client gets its own gateway.
    pub async fn client(&self, variant: Variant, group: &str) -> Checked<Client> {
        if variant.transport != Transport::Stdio {
            return Client::over_http(variant, self.rialto.address, group, None).await;
        }
        let all = self.endpoints.iter().filter(|endpoint| group == ALL || endpoint.scripted.variant.name == group);
        Client::over_stdio(variant, all.map(ServerEndpoint::spec).collect(), group).await
    }

    /// Stops the gateway and checks that no call is left and no server saw a protocol violation.
    pub async fn close(mut self) {
        self.rialto.begin_stop();
        assert!(self.rialto.stopped().await, "a call had to be cut off");
        for endpoint in &self.endpoints {
            feature_checks::until("no call is running", || endpoint.scripted.running_calls() == 0).await.unwrap();
            assert_eq!(endpoint.scripted.take_violations(), Vec::<String>::new());
        }
    }
}

/// Name of the group of all servers.
const ALL: &str = "all";

fn groups(forms: &[Variant]) -> Vec<GroupConfig> {
    let name = |variant: &Variant| -> Arc<str> { variant.name.into() };
    let mut groups: Vec<GroupConfig> =
        forms.iter().map(|variant| GroupConfig::new(variant.name, [name(variant)])).collect();
    groups.push(GroupConfig::new(ALL, forms.iter().map(name)));
    groups
}

impl ServerEndpoint {
    fn spec(&self) -> UpstreamSpec {
        UpstreamSpec::new(self.scripted.variant.name, SpecKind::Target(self.target.clone()))
    }
}

/// Checks every feature for one client and one server; returns the faults.
async fn check_pair(testbed: &Testbed, variant: Variant, endpoint: &ServerEndpoint) -> Vec<(Feature, String)> {
    let mut faults = Vec::new();
    let server = endpoint.scripted.variant;
    let mut client = None;
    for feature in Feature::ALL {
        let mut own_client = match client.take() {
            Some(client) => client,
            None => match testbed.client(variant, server.name).await {
                Ok(client) => client,
                Err(why) => {
                    faults.push((feature, why));
                    continue;
                }
            },
        };
        let checked = Cell { client: &mut own_client, server: &endpoint.scripted, feature }.check().await;
        // After a fault the client may be out of step: the next feature gets a new one.
        client = checked.is_ok().then_some(own_client);
        faults.extend(checked.err().map(|why| (feature, why)));
        faults.extend(endpoint.scripted.take_violations().into_iter().map(|why| (feature, why)));
    }
    if let Some(client) = client {
        faults.extend(client.close().await.err().map(|why| (Feature::Tools, why)));
    }
    faults
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_reaches_every_server_with_every_feature() {
    let testbed = Testbed::open(&VARIANTS).await;
    let columns = testbed.endpoints.iter().map(|endpoint| async {
        let mut faults = Vec::new();
        for variant in VARIANTS {
            let wrong = check_pair(&testbed, variant, endpoint).await;
            faults.extend(wrong.into_iter().map(|(feature, why)| (variant, endpoint.scripted.variant, feature, why)));
        }
        faults
    });
    let faults = futures_util::future::join_all(columns).await.concat();
    let failed: HashSet<(&str, &str, &str)> =
        faults.iter().map(|(client, server, feature, _)| (client.name, server.name, feature.label())).collect();
    let shown = matrix(|feature, client, server| match failed.contains(&(client.name, server.name, feature.label())) {
        true => "FAILED",
        false => mark(feature, client, server),
    });
    println!("{shown}");
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("bridge-matrix.md"), &shown).unwrap();
    let faults: Vec<String> = faults
        .iter()
        .map(|(client, server, feature, why)| {
            format!("{} → {}, {}: {why}", client.label(), server.label(), feature.label())
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    testbed.close().await;
}

/// The section of a page between two HTML comments.
fn section<'p>(page: &'p str, name: &str) -> &'p str {
    let (from, to) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let rest = page.split_once(&from).unwrap_or_else(|| panic!("no {from:?}")).1;
    rest.split_once(&to).unwrap_or_else(|| panic!("no {to:?}")).0
}

#[test]
fn docs_show_the_tested_matrix_and_limits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (readme, page) = (read("README.md"), read("docs/bridging.md"));
    // Written for copying into the pages.
    for (name, text) in
        [("bridge-expected.md", matrix(mark)), ("bridge-limits.md", table()), ("bridge-summary.md", summary())]
    {
        std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), text).unwrap();
    }
    assert_eq!(section(&readme, "summary"), summary(), "README.md");
    assert_eq!(section(&page, "matrix"), matrix(mark), "docs/bridging.md");
    assert_eq!(section(&page, "limits"), table(), "docs/bridging.md");
}
