//! The loops around our codec held against hyper, in the same way as the codec: what they accept hyper must accept and read
//! alike, and they stop where the codec says that they should.

use std::cell::LazyCell;

use tokio::runtime::{Builder, Runtime};

use crate::differential::{End, Ending, Message, Role, Transcript, read_by_both, show};
use crate::our_loops::{Bodies, LoopTranscript, receive, serve};

/// Up to this length an input is read at once, so that no body has to be waited for.
const READ_AT_ONCE: usize = 4 << 10;

thread_local! {
    static RUNTIME: LazyCell<Runtime> =
        LazyCell::new(|| Builder::new_current_thread().enable_time().build().unwrap());
}

/// Compares the loop of a role with hyper, on one way to split the input; returns the number of comparisons.
///
/// # Panics
/// When our loop accepts what hyper does not, or reads it differently.
pub fn compare_loops(role: Role, pieces: &[&[u8]]) -> usize {
    RUNTIME.with(|runtime| {
        let guard = runtime.enter();
        let comparisons = match role {
            Role::Server => compare_server(pieces),
            Role::Client { .. } => compare_client(role, pieces),
        };
        drop(guard);
        // Ends what the client's pools have spawned.
        runtime.block_on(tokio::task::yield_now());
        comparisons
    })
}

fn compare_server(pieces: &[&[u8]]) -> usize {
    let (codec, hyper) = read_by_both(Role::Server, pieces, Ending::Silence);
    let (codec, hyper) = (without_versions(codec), without_versions(hyper));
    let read = serve(pieces, Bodies::Whole);
    let context = |ours: &LoopTranscript| format!("{}\n  ours: {ours:?}\n hyper: {hyper:?}", show(pieces));
    check(&read, (&codec, &hyper), || context(&read));

    // Without its body, a request must be followed by the same requests, or by none.
    let unread = serve(pieces, Bodies::Unread);
    let (ours, theirs) = (heads(&unread.messages), heads(&hyper.messages));
    assert!(theirs.starts_with(&ours), "requests differ where bodies are not read\n{}", context(&unread));
    let is_read_at_once = matches!(pieces, [only] if only.len() < READ_AT_ONCE);
    if is_read_at_once {
        let accepted = heads(&complete(&codec.messages));
        assert!(ours.starts_with(&accepted), "a request is missing where bodies are not read\n{}", context(&unread));
    }
    2
}

fn compare_client(role: Role, pieces: &[&[u8]]) -> usize {
    let Role::Client { request } = role else { return 0 };
    for ending in [Ending::Silence, Ending::Close] {
        let (codec, hyper) = read_by_both(role, pieces, ending);
        for bodies in [Bodies::Whole, Bodies::InParts] {
            let ours = receive(request, pieces, ending, bodies);
            let context =
                || format!("{role:?}, {ending:?}, {bodies:?}\n{}\n  ours: {ours:?}\n hyper: {hyper:?}", show(pieces));
            if ending == Ending::Silence {
                check(&ours, (&codec, &hyper), context);
            } else {
                let accepted = complete(&ours.messages);
                assert_eq!(accepted, complete(&codec.messages), "at close\n{}", context());
                assert!(accepted.is_empty() || accepted == complete(&hyper.messages), "at close\n{}", context());
            }
        }
    }
    4
}

fn check(ours: &LoopTranscript, (codec, hyper): (&Transcript, &Transcript), context: impl Fn() -> String) {
    let accepted = complete(&ours.messages);
    assert!(complete(&hyper.messages).starts_with(&accepted), "messages differ\n{}", context());
    assert_eq!(accepted, complete(&codec.messages), "the loop and its codec differ\n{}", context());
    // hyper may notice earlier that an incomplete head will never be acceptable.
    let is_refused_later = hyper.end == End::Refused && matches!(codec.end, End::InHead { .. });
    if ours.end != End::Refused && !is_refused_later {
        assert_eq!(ours.end, without_position(hyper.end), "the connections stand differently\n{}", context());
        assert_eq!(heads(&ours.messages), heads(&hyper.messages), "heads differ\n{}", context());
    }
    let is_between_messages = matches!(codec.end, End::Open { .. });
    assert!(ours.reads_next || !is_between_messages, "the next message is not read\n{}", context());
}

fn complete(messages: &[Message]) -> Vec<Message> {
    messages.iter().filter(|message| message.is_complete).cloned().collect()
}

fn heads(messages: &[Message]) -> Vec<Message> {
    messages.iter().map(|message| Message { body: Vec::new(), is_complete: true, ..message.clone() }).collect()
}

fn without_position(end: End) -> End {
    match end {
        End::Open { .. } | End::InHead { .. } => End::Open { consumed: 0 },
        End::Closed { .. } => End::Closed { consumed: 0 },
        End::InBody | End::Refused => end,
    }
}

/// A service does not get the version of its requests.
fn without_versions(mut transcript: Transcript) -> Transcript {
    for message in &mut transcript.messages {
        if let Some((rest, _)) = message.start_line.rsplit_once(' ') {
            message.start_line = rest.to_owned();
        }
    }
    transcript
}
