//! The files of the page, inside the binary. A file that is missing fails the build.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, LOCATION};
use http::{HeaderValue, Method as Verb, Response, StatusCode};
use sha2::{Digest, Sha256};

use super::access::{error_response, secured};
use super::api::{ApiError, entity_tag};
use crate::http::codec::HeaderFields;
use crate::inbound::ResponseContent;

/// One file of the page.
#[derive(Debug)]
struct Asset {
    path: &'static str,
    bytes: &'static [u8],
}

/// Embeds files below `console/`.
macro_rules! assets {
    ($($path:literal,)+) => {
        &[$(Asset { path: $path, bytes: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/console/", $path)) },)+]
    };
}

/// Every file of the page. A new one needs its line here.
const ASSETS: &[Asset] = assets! {
    "index.html",
    "icon.svg",
    "api.js",
    "app.js",
    "keys.js",
    "live.js",
    "state.js",
    "ui.js",
    "pages/bridge.js",
    "pages/call.js",
    "pages/call_dialogs.js",
    "pages/call_tabs.js",
    "pages/cluster.js",
    "pages/config.js",
    "pages/config_add.js",
    "pages/groups.js",
    "pages/overview.js",
    "pages/questions.js",
    "pages/server.js",
    "pages/server_tabs.js",
    "pages/servers.js",
    "pages/sessions.js",
    "pages/signin.js",
    "pages/traffic.js",
    "pages/traffic_filter.js",
    "pages/traffic_rows.js",
    "pages/try.js",
    "pages/try_outcome.js",
    "pages/try_result.js",
    "parts/bridge.js",
    "parts/common.js",
    "parts/dialog.js",
    "parts/divider.js",
    "parts/focus.js",
    "parts/form.js",
    "parts/icons.js",
    "parts/nodes.js",
    "parts/palette.js",
    "parts/query.js",
    "parts/spark.js",
    "parts/table.js",
    "parts/timeline.js",
    "parts/wires.js",
    "pure/complete.js",
    "pure/json.js",
    "pure/lines.js",
    "pure/query.js",
    "pure/relays.js",
    "pure/revisions.js",
    "pure/schema.js",
    "pure/shell.js",
    "pure/text.js",
    "pure/time.js",
    "pure/turns.js",
    "style/frame.css",
    "style/parts.css",
    "style/tokens.css",
    "style/wires.css",
    "vendor/hooks.js",
    "vendor/htm.js",
    "vendor/preact.js",
    "vendor/signals-core.js",
    "vendor/signals.js",
    "vendor/LICENSES",
};

/// Where `index.html` refers to the files of the page. In what is served, a digest of them all stands in place of
/// `assets`, so that browsers may keep them for as long as they like.
const ASSETS_PREFIX: &str = "console/assets/";
/// The page itself.
const INDEX: &str = "index.html";

/// Digest of all files.
static DIGEST: LazyLock<String> = LazyLock::new(|| {
    let mut digest = Sha256::new();
    for asset in ASSETS {
        digest.update(asset.path);
        digest.update(asset.bytes);
    }
    digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
});

/// `index.html`, with the addresses of the files of this build.
static INDEX_PAGE: LazyLock<Bytes> = LazyLock::new(|| {
    let page = ASSETS.iter().find(|asset| asset.path == INDEX).map_or(&b""[..], |asset| asset.bytes);
    String::from_utf8_lossy(page).replace(ASSETS_PREFIX, &format!("console/{}/", *DIGEST)).into()
});

/// Serves a file of the page: embedded, or from a directory while somebody works on it.
pub(super) fn serve(
    path: &str,
    verb: &Verb,
    headers: &HeaderFields,
    folder: Option<&Path>,
) -> Response<ResponseContent> {
    let Some((name, is_permanent)) = asset_name(path) else {
        return match path {
            "/console/" => redirect(),
            _ => error_response(&ApiError::not_found("the console has no such file")),
        };
    };
    let found: Option<Cow<'static, [u8]>> = match folder {
        Some(folder) => read_file(folder, name).map(Cow::Owned),
        None if name == INDEX => Some(Cow::Borrowed(&INDEX_PAGE[..])),
        None => ASSETS.iter().find(|asset| asset.path == name).map(|asset| Cow::Borrowed(asset.bytes)),
    };
    let Some(bytes) = found else { return error_response(&ApiError::not_found("the console has no such file")) };
    let tag = entity_tag(&bytes);
    let is_known = headers.get("if-none-match") == Some(tag.as_bytes());
    let bytes = match bytes {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    let (status, body) = match is_known {
        true => (StatusCode::NOT_MODIFIED, ResponseContent::Empty),
        false if *verb == Verb::HEAD => (StatusCode::OK, ResponseContent::Empty),
        false => (StatusCode::OK, ResponseContent::Full(bytes)),
    };
    let mut response = secured(status, media_type(name), body);
    let caching = if is_permanent { "public, max-age=31536000, immutable" } else { "no-cache" };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    response.headers_mut().extend(HeaderValue::from_str(&tag).ok().map(|tag| (ETAG, tag)));
    response
}

/// The file of an address, and whether it can never change there.
fn asset_name(path: &str) -> Option<(&str, bool)> {
    let rest = path.strip_prefix("/console")?;
    if rest.is_empty() {
        return Some((INDEX, false));
    }
    let (version, name) = rest.strip_prefix('/')?.split_once('/')?;
    match version {
        "assets" => Some((name, false)),
        _ if version == *DIGEST => Some((name, true)),
        _ => None,
    }
}

/// Relative addresses in the page count from `/console` without a slash.
fn redirect() -> Response<ResponseContent> {
    let mut response = secured(StatusCode::PERMANENT_REDIRECT, "", ResponseContent::Empty);
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("../console"));
    response
}

fn read_file(folder: &Path, name: &str) -> Option<Vec<u8>> {
    let name = PathBuf::from(name);
    let is_below = name.components().all(|component| matches!(component, Component::Normal(_)));
    is_below.then(|| std::fs::read(folder.join(name)).ok()).flatten()
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        "png" => "image/png",
        "ico" => "image/x-icon",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, folder: Option<&Path>) -> Response<ResponseContent> {
        serve(path, &Verb::GET, &HeaderFields::default(), folder)
    }

    #[test]
    fn files_are_found_by_name_and_by_digest() {
        for (path, status, caching) in [
            ("/console", 200, Some("no-cache")),
            ("/console/", 308, None),
            ("/console/assets/index.html", 200, Some("no-cache")),
            (&format!("/console/{}/index.html", *DIGEST), 200, Some("public, max-age=31536000, immutable")),
            ("/console/0000000000000000/index.html", 404, Some("no-store")),
            ("/console/assets/absent.js", 404, Some("no-store")),
            ("/console/assets/../Cargo.toml", 404, Some("no-store")),
        ] {
            let response = get(path, None);
            assert_eq!(response.status(), status, "{path}");
            let given = response.headers().get(CACHE_CONTROL).map(|value| value.to_str().unwrap());
            assert_eq!(given, caching, "{path}");
            assert!(response.headers().contains_key("content-security-policy"), "{path}");
        }
    }

    #[test]
    fn a_directory_serves_what_is_below_it_only() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        assert_eq!(get("/console", Some(&folder)).status(), 200);
        for path in
            ["/console/assets/../Cargo.toml", "/console/assets//etc/hostname", "/console/assets/x/../../Cargo.toml"]
        {
            assert_eq!(get(path, Some(&folder)).status(), 404, "{path}");
        }
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let first = get("/console", None);
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        let headers = HeaderFields::of(&[("if-none-match", &tag)]);
        assert_eq!(serve("/console", &Verb::GET, &headers, None).status(), 304);
    }
}
