//! Recorded calls: `calls`, a call with both wires, its messages, exports, and what is recorded.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, rfc3339};
use super::live::{EventFilter, LiveHub, Topic};
use super::{Console, replay};
use crate::inbound::{Inbound, ResponseContent};
use crate::policy::OperatorRight;
use crate::recording::{
    BodyAccess, CallFilter, CallLog, CallRow, ExportForm, KeepError, KeptText, RecordMode, RowEvents, RowMaker,
    StoredCall, decode_number, export, messages_of,
};
use crate::workers::give_way;

/// Longest time that bodies are shown for, and the time where none is given.
const BODIES_TIME: Duration = Duration::from_secs(15 * 60);

pub(super) fn routes() -> Vec<ApiRoute> {
    use OperatorRight::{Act, Bodies, Look};
    vec![
        ApiRoute::get("calls", Look, |request| Box::pin(async move { list(&request) })).on_all_nodes().in_background(),
        ApiRoute::get("calls/{call}", Look, |request| Box::pin(async move { show(&request) })).in_background(),
        ApiRoute::get("calls/{call}/messages/{message}", Bodies, |request| Box::pin(async move { message(&request) }))
            .in_background(),
        ApiRoute::put("calls/{call}/kept", Bodies, |request| Box::pin(async move { keep(&request) })),
        ApiRoute::delete("calls/{call}/kept", Bodies, |request| Box::pin(async move { release(&request) })),
        ApiRoute::get("calls/{call}/export", Bodies, |request| Box::pin(async move { export_call(&request) }))
            .in_background(),
        ApiRoute::post("calls/{call}/replay", Act, |request| Box::pin(replay::replay(request))),
        ApiRoute::get("recording", Look, |request| Box::pin(async move { recording(&request) })),
        ApiRoute::put("recording", Bodies, |request| Box::pin(async move { change_recording(&request) })),
    ]
}

/// A page of the list of calls.
#[derive(Serialize)]
struct CallPage<'c> {
    items: Vec<CallRow<'c>>,
    next: Option<String>,
}

/// Tells streams of rows that changed.
struct CallEvents {
    live: Arc<LiveHub>,
    console: Weak<Console>,
}

impl RowEvents for CallEvents {
    fn is_watched(&self) -> bool {
        self.live.is_watched(Topic::Call)
    }

    fn changed(&self, calls: &[StoredCall], rows: RowMaker) {
        let Some(console) = self.console.upgrade() else { return };
        let rows = RowMaker { node: console.node(), ..rows };
        let bodies = match console.inbound() {
            Ok(inbound) if inbound.calls.shows_bodies() => BodyAccess::Shown,
            _ => BodyAccess::Shapes,
        };
        for call in calls {
            self.live.publish(Topic::Call, &rows.row(call, bodies));
        }
    }

    fn gone(&self, id: &str) {
        let Some(console) = self.console.upgrade() else { return };
        self.live.publish(Topic::Gone, &json!({ "id": format!("{}.{id}", console.node()) }));
    }

    fn lost(&self, count: Option<u64>, why: &str) {
        tracing::debug!(count, why, "calls are not shown");
        self.live.publish(Topic::Lost, &json!({ "count": count, "why": why }));
    }
}

/// Records calls for the streams of a console, until the gateway closes.
pub(super) fn start(console: &Arc<Console>, inbound: &Inbound, workers: Vec<tokio::runtime::Handle>) {
    let (calls, closing) = (Arc::clone(&inbound.calls), console.closing());
    let events = Arc::new(CallEvents { live: Arc::clone(console.live()), console: Arc::downgrade(console) });
    let recording = Arc::clone(&calls).run(workers, events);
    let mut viewers = console.live().viewers(Topic::Call);
    let watching = async move {
        let mut guard = None;
        loop {
            guard = if *viewers.borrow_and_update() > 0 { guard.or_else(|| Some(calls.watch())) } else { None };
            if viewers.changed().await.is_err() {
                break;
            }
        }
        drop(guard);
    };
    tokio::spawn(async move {
        tokio::select! {
            () = recording => {}
            () = watching => {}
            () = closing.cancelled() => {}
        }
    });
}

/// The filter of a stream of calls of this node, whose messages it reads where its operator may see them.
pub(super) fn event_filter(query: &str, calls: Arc<CallLog>, may_see_bodies: bool) -> Result<EventFilter, ApiError> {
    let filter = read_filter(query)?;
    let texts = move |row: &Value| -> Vec<String> {
        let number = row["id"].as_str().and_then(|id| decode_number(id.rsplit_once('.')?.1));
        let call = number.filter(|_| may_see_bodies && calls.shows_bodies()).and_then(|number| calls.get(number));
        call.map(|call| texts_of(&call, &calls.rows(String::new()))).unwrap_or_default()
    };
    let is_shown = move |data: &[u8]| {
        serde_json::from_slice(data).is_ok_and(|row: Value| filter.matches_call(row.clone(), || texts(&row)))
    };
    Ok(Box::new(move |event| event.topic != Topic::Call || is_shown(&event.data)))
}

/// The texts of a call's messages, as they are shown.
fn texts_of(call: &StoredCall, rows: &RowMaker) -> Vec<String> {
    messages_of(call).iter().filter_map(KeptText::of).map(|kept| rows.rules.show_kept(&kept).text).collect()
}

fn read_filter(query: &str) -> Result<CallFilter, ApiError> {
    CallFilter::parse(query)
        .map_err(|why| ApiError::invalid(why).hint("keys: client, server, tool, method, outcome, took, era"))
}

fn calls(request: &AdminRequest) -> Result<Arc<CallLog>, ApiError> {
    let calls = Arc::clone(&request.console.inbound()?.calls);
    calls.look();
    Ok(calls)
}

/// Whether this operator is shown bodies now.
pub(super) fn bodies_for(request: &AdminRequest, calls: &CallLog) -> BodyAccess {
    match request.operator.may >= OperatorRight::Bodies && calls.shows_bodies() {
        true => BodyAccess::Shown,
        false => BodyAccess::Shapes,
    }
}

fn list(request: &AdminRequest) -> ApiResult {
    let (calls, limit) = (calls(request)?, request.limit()?);
    let filter = read_filter(request.query("q").unwrap_or_default())?;
    let below = match request.query("cursor") {
        Some(cursor) => request.console.open_cursor(cursor)? as u64,
        None => u64::MAX,
    };
    let (rows, bodies) = (calls.rows(request.console.node()), bodies_for(request, &calls));
    let texts = |call: &StoredCall| match bodies {
        BodyAccess::Shown => texts_of(call, &rows),
        BodyAccess::Shapes => Vec::new(),
    };
    let is_wanted = |call: &StoredCall| {
        filter.is_empty() || {
            give_way();
            filter.matches_call(rows.row_value(call, bodies), || texts(call))
        }
    };
    let found = calls.newest(below, is_wanted, limit + 1);
    let next = found.get(limit - 1).filter(|_| found.len() > limit).map(|last| last.number);
    let next = next.map(|number| request.console.seal_cursor(usize::try_from(number).unwrap_or(0)));
    let row = |call| {
        give_way();
        rows.row(call, bodies)
    };
    let items = found.iter().take(limit).map(row).collect();
    Ok(ApiAnswer::json(&CallPage { items, next }))
}

/// The call that a request names.
pub(super) fn find(request: &AdminRequest) -> Result<(Arc<CallLog>, StoredCall), ApiError> {
    let (calls, id) = (calls(request)?, request.parameter(0));
    let number =
        id.rsplit_once('.').and_then(|(node, number)| decode_number(number).filter(|_| node == request.console.node()));
    let number = number.ok_or_else(|| ApiError::not_found("no call of this node has such an id"))?;
    let gone = || {
        let reach = calls.reach().map(|reach| match reach.as_secs() {
            seconds @ 0..120 => format!("; the ring holds the last {seconds} s"),
            seconds => format!("; the ring holds the last {} minutes", seconds / 60),
        });
        let why = format!("this call is no longer kept{}", reach.unwrap_or_default());
        ApiError::new(StatusCode::GONE, "not_kept", why).hint("keep a call before you share it")
    };
    let call = calls.get(number).ok_or_else(gone)?;
    Ok((calls, call))
}

fn show(request: &AdminRequest) -> ApiResult {
    let (calls, call) = find(request)?;
    Ok(ApiAnswer::json(&calls.rows(request.console.node()).detail(&call, bodies_for(request, &calls))))
}

fn needs_bodies(calls: &CallLog) -> Result<(), ApiError> {
    if calls.shows_bodies() {
        return Ok(());
    }
    let error = ApiError::new(StatusCode::FORBIDDEN, "no_bodies", "bodies are not shown");
    Err(error.hint("PUT recording {\"bodies\": true} shows them for 15 minutes, unless [admin] bodies is \"never\""))
}

fn message(request: &AdminRequest) -> ApiResult {
    let (calls, call) = find(request)?;
    needs_bodies(&calls)?;
    let messages = messages_of(&call);
    let one = request.parameter(1).parse().ok().and_then(|n: usize| messages.get(n));
    let kept = one.and_then(KeptText::of).ok_or_else(|| ApiError::not_found("the call has no such message"))?;
    let shown = calls.rows(request.console.node()).rules.show_kept(&kept).text;
    let name = format!("attachment; filename=\"message-{}.json\"", request.parameter(1));
    Ok(attachment("application/octet-stream", shown, name))
}

fn attachment(media_type: &'static str, text: String, disposition: String) -> ApiAnswer {
    let body = ResponseContent::Full(text.into());
    let headers = vec![("content-disposition", disposition)];
    ApiAnswer { status: StatusCode::OK, media_type, headers, body }
}

fn keep(request: &AdminRequest) -> ApiResult {
    let (calls, call) = find(request)?;
    calls.keep(call.number).map_err(|why| match why {
        KeepError::Gone => ApiError::new(StatusCode::GONE, "not_kept", "this call is no longer kept"),
        KeepError::Full => ApiError::new(StatusCode::CONFLICT, "full", "as many calls are kept as may be")
            .hint("let another one go: at most 100 calls and 16 MiB are kept"),
    })?;
    Ok(ApiAnswer::empty())
}

fn release(request: &AdminRequest) -> ApiResult {
    let (calls, call) = find(request)?;
    calls.release(call.number);
    Ok(ApiAnswer::empty())
}

fn export_call(request: &AdminRequest) -> ApiResult {
    let (calls, call) = find(request)?;
    needs_bodies(&calls)?;
    let form = ExportForm::parse(request.query("as").unwrap_or("rialto"));
    let form = form.ok_or_else(|| ApiError::invalid("as is one of rialto, har, curl"))?;
    let (media_type, ending) = form.file();
    let text = export(&call, &calls.rows(request.console.node()), form);
    Ok(attachment(media_type, text, format!("attachment; filename=\"{}.{ending}\"", request.parameter(0))))
}

/// What is recorded, as the API shows it.
pub(super) fn recording_json(calls: &CallLog) -> Value {
    let state = calls.state();
    let mode = match state.mode {
        RecordMode::Off => "off",
        RecordMode::Watch => "watch",
        RecordMode::Always => "always",
    };
    let until = state.bodies_for.map(|left| rfc3339(SystemTime::now() + left));
    json!({
        "on": state.is_on, "mode": mode, "bodies": calls.shows_bodies(), "bodies_until": until,
        "may_show_bodies": calls.may_show_bodies(), "rate": state.rate,
        "rate_until": state.rate_for.map(|left| rfc3339(SystemTime::now() + left)), "bytes": state.bytes, "kept": state.kept,
    })
}

fn recording(request: &AdminRequest) -> ApiResult {
    Ok(ApiAnswer::json(&recording_json(&request.console.inbound()?.calls)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordingChange {
    bodies: Option<bool>,
    r#for: Option<String>,
    rate: Option<u32>,
}

fn change_recording(request: &AdminRequest) -> ApiResult {
    let change: RecordingChange = request.json()?;
    let calls = calls(request)?;
    let time = match change.r#for.as_deref() {
        None => BODIES_TIME,
        Some(text) => read_time(text).ok_or_else(|| {
            ApiError::invalid(format!("for: {text:?} is no time up to 15 minutes")).hint("write \"15m\" or \"90s\"")
        })?,
    };
    if let Some(bodies) = change.bodies {
        if bodies && !calls.may_show_bodies() {
            let error = ApiError::new(StatusCode::FORBIDDEN, "no_bodies", "bodies are never shown here");
            return Err(error.hint("[admin] bodies is \"never\""));
        }
        calls.show_bodies(bodies.then_some(time));
        tracing::info!(operator = %request.operator.name, bodies, "bodies of calls are shown or hidden");
    }
    if let Some(rate) = change.rate {
        calls.set_rate(rate, time);
        tracing::info!(operator = %request.operator.name, rate, "the rate of recorded calls is changed for a while");
    }
    Ok(ApiAnswer::json(&recording_json(&calls)))
}

/// A time of up to 15 minutes.
fn read_time(text: &str) -> Option<Duration> {
    let (number, factor) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s')?, 1),
    };
    let time = Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(factor)?);
    (time > Duration::ZERO && time <= BODIES_TIME).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_shown_for_fifteen_minutes_at_most() {
        assert_eq!(read_time("15m"), Some(BODIES_TIME));
        assert_eq!(read_time("90s"), Some(Duration::from_secs(90)));
        for wrong in ["16m", "0s", "", "m", "1h", "-1s", "99999999999999999999m"] {
            assert_eq!(read_time(wrong), None, "{wrong}");
        }
    }
}
