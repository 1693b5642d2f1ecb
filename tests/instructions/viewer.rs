//! A viewer of the console, and whether the gateway records because of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of a configuration that let the viewer in.
pub const ADMIN: &str = "admin = { tokens = { ann = { token = \"a-viewer-of-the-guards\", may = \"look\" } } }";
/// The same, where nearly all calls are beyond the rate up to which all are recorded.
pub const ADMIN_OF_FEW: &str =
    "admin = { record_rate = 1, tokens = { ann = { token = \"a-viewer-of-the-guards\", may = \"look\" } } }";
const AUTHORIZATION: &str = "Authorization: Bearer a-viewer-of-the-guards";
/// Recording ends half a minute after the last viewer; a gateway under valgrind is slow.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Watches calls until it is dropped.
pub struct Viewer {
    _stream: TcpStream,
}

impl Viewer {
    /// Opens the live stream and waits until calls are recorded.
    pub fn open(address: SocketAddr) -> Self {
        let stream = ask(address, "live?topics=call", "");
        wait_recording(address, true);
        Self { _stream: stream }
    }
}

/// Waits until calls are recorded, or no longer.
pub fn wait_recording(address: SocketAddr, wanted: bool) {
    let deadline = Instant::now() + TIMEOUT;
    let expected = format!("\"on\":{wanted}");
    loop {
        let mut answer = String::new();
        ask(address, "recording", "Connection: close\r\n").read_to_string(&mut answer).expect("the gateway answers");
        if answer.replace(": ", ":").contains(&expected) {
            return;
        }
        assert!(Instant::now() < deadline, "not {expected}: {answer}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// Sends a request of the admin API and checks the status.
fn ask(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the gateway accepts connections");
    let request = format!("GET /admin/v1/{path} HTTP/1.1\r\nHost: {address}\r\n{AUTHORIZATION}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("the gateway reads");
    let mut status = String::new();
    BufReader::with_capacity(1, &mut stream).read_line(&mut status).expect("the gateway answers");
    assert!(status.starts_with("HTTP/1.1 200"), "{path}: {status}");
    stream
}
