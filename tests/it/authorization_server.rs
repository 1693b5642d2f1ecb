//! Authorization servers in processes of their own, and a browser that logs in at their pages.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use url::Url;

use crate::harness::{HttpMode, HttpRequest, TEST_TIMEOUT};
use crate::peers;
use crate::ports::ReservedPort;

/// Confidential client of every authorization server.
pub const CLIENT: &str = "rialto";
pub const SECRET: &str = "rialto-secret";
/// Public client of oidc-provider, for another program of the same person.
pub const OTHER_CLIENT: &str = "desktop";
/// Where codes are sent. Nothing listens there: the browser stops before it.
pub const CALLBACK: &str = "http://127.0.0.1:9/callback";
/// The password of the account at canaille; oidc-provider takes any.
const PASSWORD: &str = "correct horse";
/// Redirects and forms until a code is there.
const MAX_STEPS: usize = 30;

/// A running authorization server. Ends when dropped.
pub struct AuthorizationServer {
    pub issuer: String,
    /// Stays with the server while it is stopped; canaille chooses its own.
    port: Option<ReservedPort>,
    child: Child,
    requests: Arc<Mutex<Vec<String>>>,
}

/// What a token endpoint gives.
#[derive(Debug, Clone)]
pub struct GivenTokens {
    pub access_token: String,
    pub id_token: Option<String>,
    pub refresh_token: Option<String>,
}

impl AuthorizationServer {
    /// oidc-provider, with variables of `tests/peers/node/as.mjs`.
    pub async fn oidc_provider(variables: &[(&str, &str)]) -> Self {
        tokio::task::spawn_blocking(peers::installed).await.unwrap();
        let port = ReservedPort::new();
        let server = Self::start(oidc_provider_command(&port, variables)).await;
        Self { port: Some(port), ..server }
    }

    /// Starts oidc-provider again at the same address, with other variables. Requests are counted anew.
    pub async fn restart(&mut self, variables: &[(&str, &str)]) {
        let port = self.port.take().expect("its port is reserved");
        let server = Self::start(oidc_provider_command(&port, variables)).await;
        *self = Self { port: Some(port), ..server };
    }

    /// canaille, whose tokens are opaque.
    pub async fn canaille() -> Self {
        tokio::task::spawn_blocking(peers::installed).await.unwrap();
        Self::start(peers::script("canaille/bin/python", "python/canaille_server.py")).await
    }

    async fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                recorded.lock().push(line);
            }
        });
        let listening = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(issuer) = line.strip_prefix("listening on ") {
                    return issuer.to_owned();
                }
            }
            panic!("the authorization server ended: {:?}", requests.lock());
        };
        let issuer = tokio::time::timeout(3 * TEST_TIMEOUT, listening).await.expect("it listens in time");
        // A server that cannot write its notices would end.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { issuer, port: None, child, requests }
    }

    /// Ends the process and waits for it. Nobody else gets its port while this lives.
    pub async fn stop(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub fn port(&self) -> u16 {
        Url::parse(&self.issuer).unwrap().port().unwrap()
    }

    /// How many requests there were for a path.
    pub fn requests(&self, request: &str) -> usize {
        self.requests.lock().iter().filter(|line| *line == request).count()
    }

    /// What the server says of itself.
    pub async fn metadata(&self) -> Value {
        Browser::default().get(&format!("{}/.well-known/oauth-authorization-server", self.issuer)).await.json()
    }

    async fn post_token(&self, form: &[(&str, &str)]) -> GivenTokens {
        let endpoint = self.metadata().await["token_endpoint"].as_str().unwrap().to_owned();
        // A public client says its name in the form.
        let is_public = form.iter().any(|(name, _)| *name == "client_id");
        let secret = Some((CLIENT, SECRET)).filter(|_| !is_public);
        let answer = Browser::default().post(&endpoint, form, secret).await;
        let tokens = answer.json();
        let text = |name: &str| tokens[name].as_str().map(str::to_owned);
        let access_token = text("access_token").unwrap_or_else(|| panic!("no token: {tokens}"));
        GivenTokens { access_token, id_token: text("id_token"), refresh_token: text("refresh_token") }
    }

    /// A token for the client itself.
    pub async fn client_token(&self, resource: &str) -> String {
        let form = [("grant_type", "client_credentials"), ("resource", resource)];
        self.post_token(&form).await.access_token
    }

    /// A token of the client itself with scopes, for a server without resources.
    pub async fn scoped_client_token(&self, scope: &str) -> String {
        self.post_token(&[("grant_type", "client_credentials"), ("scope", scope)]).await.access_token
    }

    /// New tokens for a refresh token.
    pub async fn refresh(&self, refresh_token: &str) -> GivenTokens {
        self.post_token(&[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
    }

    /// Revokes a token.
    pub async fn revoke(&self, token: &str) {
        let endpoint = self.metadata().await["revocation_endpoint"].as_str().unwrap().to_owned();
        let answer = Browser::default().post(&endpoint, &[("token", token)], Some((CLIENT, SECRET))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Logs a person in through the pages (authorization code with PKCE), and redeems the code.
    pub async fn log_in(&self, user: &str, scope: &str, resource: Option<&str>) -> GivenTokens {
        self.log_in_with(CLIENT, user, scope, resource).await
    }

    /// Like [`Self::log_in`], with the program of that id.
    pub async fn log_in_with(&self, client: &str, user: &str, scope: &str, resource: Option<&str>) -> GivenTokens {
        let verifier = URL_SAFE_NO_PAD.encode(Sha256::digest(format!("{user} {:?}", std::time::Instant::now())));
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
        let endpoint = self.metadata().await["authorization_endpoint"].as_str().unwrap().to_owned();
        let mut url = Url::parse(&endpoint).unwrap();
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", client),
            ("redirect_uri", CALLBACK),
            ("scope", scope),
            ("state", "s1"),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("prompt", "consent"),
        ]);
        if let Some(resource) = resource {
            url.query_pairs_mut().append_pair("resource", resource);
        }
        let callback = fill_in_pages(url.as_str(), user).await;
        let code = callback.query_pairs().find(|(name, _)| name == "code").map(|(_, code)| code.into_owned());
        let code = code.unwrap_or_else(|| panic!("no code: {callback}"));
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("redirect_uri", CALLBACK),
            ("code_verifier", &verifier),
        ];
        form.extend(resource.map(|resource| ("resource", resource)));
        form.extend(Some(("client_id", client)).filter(|_| client != CLIENT));
        self.post_token(&form).await
    }
}

/// oidc-provider at a port, with variables of `tests/peers/node/as.mjs`.
fn oidc_provider_command(port: &ReservedPort, variables: &[(&str, &str)]) -> Command {
    let mut command = peers::script("node/node_modules/.bin/node", "node/as.mjs");
    command.envs(variables.iter().copied()).env("PORT", port.number().to_string());
    command
}

/// Logs in and consents at the pages of an authorization request; returns where the browser was sent with the outcome.
pub async fn fill_in_pages(authorization_request: &str, user: &str) -> Url {
    Browser::default().authorize(authorization_request, user).await
}

/// A browser without scripts: cookies, redirects, forms.
#[derive(Default)]
struct Browser {
    cookies: BTreeMap<String, String>,
}

struct Page {
    url: Url,
    status: u16,
    location: Option<Url>,
    body: String,
}

impl Browser {
    async fn get(&mut self, url: &str) -> Page {
        self.send("GET", url, String::new(), None).await
    }

    async fn post(&mut self, url: &str, form: &[(&str, &str)], client: Option<(&str, &str)>) -> Page {
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        self.send("POST", url, form, client).await
    }

    async fn send(&mut self, verb: &'static str, url: &str, body: String, client: Option<(&str, &str)>) -> Page {
        let url = Url::parse(url).unwrap();
        let address: SocketAddr = ([127, 0, 0, 1], url.port().unwrap()).into();
        let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let mut request = HttpRequest::to(address, verb, target).header("accept", "text/html, application/json");
        if !self.cookies.is_empty() {
            let pairs: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.header("cookie", &pairs.join("; "));
        }
        if verb == "POST" {
            request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        }
        if let Some((id, secret)) = client {
            request = request.header("authorization", &format!("Basic {}", STANDARD.encode(format!("{id}:{secret}"))));
        }
        let response = request.attempt_over(HttpMode::Http1).await;
        let response = response.unwrap_or_else(|error| panic!("{verb} {url}: {error:?}"));
        for cookie in response.headers.get_all("set-cookie") {
            let pair = cookie.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            match value.is_empty() {
                true => drop(self.cookies.remove(name)),
                false => drop(self.cookies.insert(name.to_owned(), value.to_owned())),
            }
        }
        let location = response.header("location").map(|location| url.join(location).unwrap());
        Page { status: response.status, location, body: response.text().await, url }
    }

    /// Logs in and consents until the code is sent to the callback.
    async fn authorize(&mut self, url: &str, user: &str) -> Url {
        let mut page = self.get(url).await;
        for _ in 0..MAX_STEPS {
            page = match page.location.take() {
                Some(location) if location.as_str().starts_with(CALLBACK) => return location,
                Some(location) => self.get(location.as_str()).await,
                None => {
                    let (action, fields) = page.form(user);
                    let fields: Vec<(&str, &str)> =
                        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                    self.post(action.as_str(), &fields, None).await
                }
            };
        }
        panic!("no code after {MAX_STEPS} steps; the last page is {}: {}", page.url, page.body)
    }
}

impl Page {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{} {error}: {}", self.status, self.body))
    }

    /// The form that is posted, filled in by the names of its fields.
    fn form(&self, user: &str) -> (Url, Vec<(String, String)>) {
        let is_post = |form: &&str| form.split('>').next().unwrap().to_ascii_lowercase().contains("method=\"post\"");
        let form = self.body.split("<form").skip(1).find(is_post);
        let form = form.unwrap_or_else(|| panic!("{} {} has no form: {}", self.status, self.url, self.body));
        let (opening, rest) = form.split_once('>').unwrap();
        let inside = rest.split("</form").next().unwrap();
        let action = attribute(opening, "action").unwrap_or_default();
        let mut fields = Vec::new();
        for input in inside.split("<input").skip(1).map(|input| input.split('>').next().unwrap()) {
            let Some(name) = attribute(input, "name") else { continue };
            let value = match name.as_str() {
                "login" => user.to_owned(),
                "password" => PASSWORD.to_owned(),
                _ => attribute(input, "value").unwrap_or_default(),
            };
            fields.push((name, value));
        }
        // The consent page of canaille has buttons with names.
        if inside.contains("value=\"accept\"") {
            fields.push(("answer".to_owned(), "accept".to_owned()));
        }
        (self.url.join(&action).unwrap(), fields)
    }
}

/// The value of an attribute within a tag.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    Some(rest.split('"').next()?.replace("&amp;", "&"))
}
