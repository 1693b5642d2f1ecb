//! Who calls: what a credential says of its holder, established once per credential and shared by all of its requests.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};

/// Who is behind a credential: a stable id, such as `https://login.example|ann`, `key|ci` or `anonymous`.
pub type Principal = Arc<str>;

/// Principal and client id together. Sessions, events, parked calls, request states, cursors, tasks, leases and
/// subscriptions belong to one of these.
pub type CallerId = Arc<str>;

/// Who calls, and what rules, limits and the audit log need to know of it. Holds no secret, so that it can be relayed to
/// other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Who is behind the credential.
    pub principal: Principal,
    /// What belongs to this caller is kept under this id.
    pub caller_id: CallerId,
    /// What was shown.
    pub credential: Credential,
    /// The program that calls (`client_id`, else `azp`), where the credential names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Arc<str>>,
    /// Roles, in the order of the credential.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Arc<str>>,
    /// Scopes as granted, without those that a hierarchy adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<Arc<str>>,
    /// The groups that this credential is good for; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<Arc<str>>>,
    /// For display only; decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// The claims of a token, for rules that name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The id of the token (`jti`), for the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<Arc<str>>,
    /// Digest of the key that signed the token, where one did: what it opened ends when the issuer withdraws the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<Arc<str>>,
    /// When the credential ends, leeway included. Listening streams end with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<SystemTime>,
    /// What rules have derived from all this, so that it is derived once.
    #[serde(skip)]
    pub derived: DerivedSlot,
    /// What rate limits have derived from it.
    #[serde(skip)]
    pub limits: DerivedSlot,
}

/// A slot for one value that is derived from an identity. It is no part of the identity: all slots are equal, and a clone,
/// which may be changed, has an empty one.
#[derive(Default)]
pub struct DerivedSlot(ArcSwapOption<Box<dyn Any + Send + Sync>>);

/// The kind of credential that was shown, with the name that the configuration has for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credential {
    /// None, where none is needed.
    Anonymous,
    /// None: the client started this process and speaks over stdio.
    Local,
    /// A static token of `[access.tokens]`.
    Token(Arc<str>),
    /// An API key of `[access.keys]`.
    Key(Arc<str>),
    /// A signed token of an issuer of `[access.issuers]`.
    Jwt(Arc<str>),
    /// A token that the issuer was asked about.
    Opaque(Arc<str>),
    /// A client certificate.
    Certificate(Arc<str>),
}

/// Principal of callers without a credential.
pub const ANONYMOUS: &str = "anonymous";
/// Principal of the client on stdio.
pub const LOCAL: &str = "local";

impl Identity {
    /// Somebody who has shown this credential. Nothing else is known.
    pub fn new(principal: impl Into<Principal>, credential: Credential) -> Self {
        let principal = principal.into();
        Self {
            caller_id: Arc::clone(&principal),
            principal,
            credential,
            client_id: None,
            roles: Vec::new(),
            scopes: Vec::new(),
            groups: None,
            name: None,
            claims: None,
            token_id: None,
            signing_key: None,
            expires_at: None,
            derived: DerivedSlot::default(),
            limits: DerivedSlot::default(),
        }
    }

    /// A caller without a credential, where none is needed.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, Credential::Anonymous)
    }

    /// The client on stdio.
    pub fn local() -> Self {
        Self::new(LOCAL, Credential::Local)
    }

    /// Names the program that calls, which becomes part of the caller's id.
    #[must_use]
    pub fn with_client_id(mut self, client_id: impl Into<Arc<str>>) -> Self {
        let client_id = client_id.into();
        // A line break stands in neither part: no two pairs have the same id.
        self.caller_id = format!("{}\n{client_id}", self.principal).into();
        self.client_id = Some(client_id);
        self
    }

    /// Whether nobody knows who this is.
    pub fn is_anonymous(&self) -> bool {
        self.credential == Credential::Anonymous
    }

    /// Whether the credential may be used for a group.
    pub fn may_use_group(&self, group: &str) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.iter().any(|allowed| **allowed == *group))
    }
}

impl DerivedSlot {
    /// The value, if it has type `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.load().as_ref()?.downcast_ref::<Arc<T>>().cloned()
    }

    /// Replaces the value.
    pub fn set<T: Any + Send + Sync>(&self, value: Arc<T>) {
        self.0.store(Some(Arc::new(Box::new(value))));
    }
}

impl Clone for DerivedSlot {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for DerivedSlot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for DerivedSlot {}

impl fmt::Debug for DerivedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedSlot")
    }
}

impl Credential {
    /// The credential as the audit log names it: `key:ci`, `jwt:corp`, `anonymous`.
    pub fn label(&self) -> String {
        match self {
            Self::Anonymous => ANONYMOUS.to_owned(),
            Self::Local => LOCAL.to_owned(),
            Self::Token(name) => format!("token:{name}"),
            Self::Key(name) => format!("key:{name}"),
            Self::Jwt(issuer) => format!("jwt:{issuer}"),
            Self::Opaque(issuer) => format!("opaque:{issuer}"),
            Self::Certificate(name) => format!("cert:{name}"),
        }
    }

    /// Whether its holder can get another one with more scopes.
    pub fn can_gain_scopes(&self) -> bool {
        matches!(self, Self::Jwt(_) | Self::Opaque(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_principal_are_different_callers() {
        let ann = || Identity::new("https://login.example|ann", Credential::Jwt("corp".into()));
        let [desktop, web] = ["desktop", "web"].map(|client| ann().with_client_id(client));
        assert_eq!(desktop.principal, web.principal);
        assert_ne!(desktop.caller_id, web.caller_id);
        assert_eq!(desktop, ann().with_client_id("desktop"));
    }

    #[test]
    fn a_changed_clone_has_nothing_derived() {
        let ann = Identity::anonymous();
        ann.derived.set(Arc::new(7_u32));
        assert_eq!(ann.derived.get::<u32>().as_deref(), Some(&7));
        assert_eq!(ann.derived.get::<u64>(), None);
        assert_eq!((ann.clone(), ann.clone().derived.get::<u32>()), (ann, None));
    }

    #[test]
    fn an_identity_survives_a_relay() {
        let mut ann = Identity::new("i|ann", Credential::Jwt("corp".into())).with_client_id("c");
        ann.roles = vec!["a".into()];
        ann.expires_at = Some(SystemTime::UNIX_EPOCH);
        let json = serde_json::to_string(&ann).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&json).unwrap(), ann);
        let anonymous = serde_json::to_string(&Identity::anonymous()).unwrap();
        let short = r#"{"principal":"anonymous","caller_id":"anonymous","credential":"anonymous"}"#;
        assert_eq!(anonymous, short, "what is not known takes no room in a relayed request");
    }
}
