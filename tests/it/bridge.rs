//! Every client in front of every server: seven forms of each, and every feature in between.
//!
//! What is known not to pass stands in a table with what happens instead, and that is checked, too.
//! docs/bridging.md shows the matrix, the README its summary.

mod acts;
mod client;
mod corners;
mod features;
mod forms;
mod held;
mod jobs;
mod limits;
mod mixed;
mod outside;
mod puppet;
mod real;
mod seen;
mod stage;
mod tasks;
mod withdrawn;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::upstream::{SpecKind, UpstreamSpec};

use self::client::{Checked, Client};
use self::features::Cell;
use self::forms::{FORMS, Feature, Form, Transport};
use self::limits::{mark, matrix, summary, table};
use self::stage::Stage;
use crate::harness::Rialto;

/// A gateway with a group for each of the servers, and one for all of them.
pub struct Scene {
    pub rialto: Rialto,
    pub stages: Vec<Stage>,
}

impl Scene {
    pub async fn open(forms: &[Form]) -> Self {
        Self::with(forms, |_| {}).await
    }

    pub async fn with(forms: &[Form], change: impl FnOnce(&mut rialto::app::AppSettings)) -> Self {
        let stages = futures_util::future::join_all(forms.iter().map(|form| Stage::open(*form))).await;
        let rialto = Rialto::with(|settings| {
            settings.layout =
                GatewayConfig { upstreams: stages.iter().map(Stage::spec).collect(), groups: groups(forms) };
            change(settings);
        })
        .await;
        Self { rialto, stages }
    }

    /// A client of a group.
    pub async fn client(&self, form: Form, group: &str) -> Checked<Client> {
        if form.transport != Transport::Stdio {
            return Client::over_http(form, self.rialto.address, group, None).await;
        }
        let all = self.stages.iter().filter(|stage| group == ALL || stage.puppet.form.name == group);
        Client::over_stdio(form, all.map(Stage::spec).collect(), group).await
    }

    /// Stops the gateway; nothing may be left.
    pub async fn close(mut self) {
        self.rialto.begin_stop();
        assert!(self.rialto.stopped().await, "something had to be cut off");
        for stage in &self.stages {
            features::until("nothing runs", || stage.puppet.running() == 0).await.unwrap();
            assert_eq!(stage.puppet.complaints(), Vec::<String>::new());
        }
    }
}

/// The group of all servers.
const ALL: &str = "all";

fn groups(forms: &[Form]) -> Vec<GroupConfig> {
    let name = |form: &Form| -> Arc<str> { form.name.into() };
    let mut groups: Vec<GroupConfig> = forms.iter().map(|form| GroupConfig::new(form.name, [name(form)])).collect();
    groups.push(GroupConfig::new(ALL, forms.iter().map(name)));
    groups
}

impl Stage {
    fn spec(&self) -> UpstreamSpec {
        UpstreamSpec::new(self.puppet.form.name, SpecKind::Target(self.target.clone()))
    }
}

/// Every feature of one client in front of one server; gives back what is wrong.
async fn pair(scene: &Scene, form: Form, stage: &Stage) -> Vec<(Feature, String)> {
    let mut faults = Vec::new();
    let server = stage.puppet.form;
    let mut client = None;
    for feature in Feature::ALL {
        let mut own = match client.take() {
            Some(client) => client,
            None => match scene.client(form, server.name).await {
                Ok(client) => client,
                Err(why) => {
                    faults.push((feature, why));
                    continue;
                }
            },
        };
        let checked = Cell { client: &mut own, server: &stage.puppet, feature }.check().await;
        // One that is confused is not asked again.
        client = checked.is_ok().then_some(own);
        faults.extend(checked.err().map(|why| (feature, why)));
        faults.extend(stage.puppet.complaints().into_iter().map(|why| (feature, why)));
    }
    if let Some(client) = client {
        faults.extend(client.close().await.err().map(|why| (Feature::Tools, why)));
    }
    faults
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_reaches_every_server_with_every_feature() {
    let scene = Scene::open(&FORMS).await;
    let columns = scene.stages.iter().map(|stage| async {
        let mut faults = Vec::new();
        for form in FORMS {
            let wrong = pair(&scene, form, stage).await;
            faults.extend(wrong.into_iter().map(|(feature, why)| (form, stage.puppet.form, feature, why)));
        }
        faults
    });
    let faults = futures_util::future::join_all(columns).await.concat();
    let failed: HashSet<(&str, &str, &str)> =
        faults.iter().map(|(client, server, feature, _)| (client.name, server.name, feature.words())).collect();
    let shown = matrix(|feature, client, server| match failed.contains(&(client.name, server.name, feature.words())) {
        true => "FAILED",
        false => mark(feature, client, server),
    });
    println!("{shown}");
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("bridge-matrix.md"), &shown).unwrap();
    let faults: Vec<String> = faults
        .iter()
        .map(|(client, server, feature, why)| {
            format!("{} → {}, {}: {why}", client.words(), server.words(), feature.words())
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    scene.close().await;
}

/// The part of a page between two marks.
fn part<'p>(page: &'p str, name: &str) -> &'p str {
    let (from, to) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let rest = page.split_once(&from).unwrap_or_else(|| panic!("no {from:?}")).1;
    rest.split_once(&to).unwrap_or_else(|| panic!("no {to:?}")).0
}

#[test]
fn docs_show_the_tested_matrix_and_limits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (readme, page) = (read("README.md"), read("docs/bridging.md"));
    // What has to stand there can be taken from here.
    for (name, text) in
        [("bridge-expected.md", matrix(mark)), ("bridge-limits.md", table()), ("bridge-summary.md", summary())]
    {
        std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), text).unwrap();
    }
    assert_eq!(part(&readme, "summary"), summary(), "README.md");
    assert_eq!(part(&page, "matrix"), matrix(mark), "docs/bridging.md");
    assert_eq!(part(&page, "limits"), table(), "docs/bridging.md");
}
