//! What the configuration says of an issuer.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use zeroize::Zeroizing;

use super::algorithm::SigningAlgorithm;

/// Difference between clocks that is tolerated unless the file says otherwise.
pub const DEFAULT_LEEWAY: Duration = Duration::from_secs(30);
/// Largest difference between clocks that can be tolerated.
pub const MAX_LEEWAY: Duration = Duration::from_secs(120);
/// Claim with the name that is shown for a person, unless the file names another.
pub const DEFAULT_NAME_CLAIM: &str = "name";

/// An authorization server whose tokens are accepted.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// Name in the file.
    pub name: Arc<str>,
    /// The URL by which the issuer names itself, compared byte for byte with `iss`.
    pub issuer: String,
    /// Audiences that are accepted beside the addresses of the gateway.
    pub audiences: Vec<String>,
    /// The claim that says whom a token is for.
    pub audience_claim: AudienceClaim,
    /// The claim with the roles; dots descend into objects. Without it, `roles` and `groups` are read.
    pub roles_claim: Option<String>,
    /// The claim with the name to show.
    pub name_claim: String,
    /// Algorithms that a signature may have.
    pub algorithms: Vec<SigningAlgorithm>,
    /// How tokens are verified.
    pub token_format: TokenFormat,
    /// Our id at the issuer.
    pub client_id: Option<String>,
    /// Our secret at the issuer.
    pub client_secret: Option<Zeroizing<String>>,
    /// Where the keys come from.
    pub keys: KeySource,
    /// Difference between clocks that is tolerated.
    pub leeway: Duration,
}

/// How the tokens of an issuer are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenFormat {
    /// By their signature.
    #[default]
    Jwt,
    /// By asking the issuer (RFC 7662).
    Opaque,
}

/// The claim that says whom a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AudienceClaim {
    /// `aud`.
    #[default]
    Aud,
    /// `client_id`, for issuers that send no `aud`. Only the configured audiences are accepted then.
    ClientId,
}

/// Where the keys of an issuer come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KeySource {
    /// From `jwks_uri` of the issuer's metadata.
    #[default]
    Metadata,
    /// From this URL.
    Url(Uri),
    /// From this file.
    File(PathBuf),
}

impl IssuerSettings {
    /// An issuer with default settings.
    pub fn new(name: &str, issuer: &str) -> Self {
        Self {
            name: name.into(),
            issuer: issuer.to_owned(),
            audiences: Vec::new(),
            audience_claim: AudienceClaim::default(),
            roles_claim: None,
            name_claim: DEFAULT_NAME_CLAIM.to_owned(),
            algorithms: SigningAlgorithm::ALL.to_vec(),
            token_format: TokenFormat::default(),
            client_id: None,
            client_secret: None,
            keys: KeySource::default(),
            leeway: DEFAULT_LEEWAY,
        }
    }
}

impl fmt::Debug for IssuerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("IssuerSettings");
        debug.field("name", &self.name).field("issuer", &self.issuer).field("audiences", &self.audiences);
        debug.field("token_format", &self.token_format).field("client_id", &self.client_id);
        debug.field("client_secret", &self.client_secret.as_ref().map(|_| "***")).finish_non_exhaustive()
    }
}
