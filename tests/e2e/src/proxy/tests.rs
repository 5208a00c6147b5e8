use super::*;
use crate::wait::{check, seconds, wait};

/// A server that sends back what it gets, and a link to it.
fn echo() -> Link {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut copy = stream.try_clone().expect("a second handle");
                std::io::copy(&mut copy, &mut stream)
            });
        }
    });
    Link::to(port)
}

fn connect(link: &Link) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", link.port())).expect("the link listens");
    stream.set_read_timeout(Some(seconds(5))).expect("not zero");
    stream
}

/// Sends so many bytes and reads them back; how long that took.
fn round_trip(stream: &mut TcpStream, bytes: usize) -> Duration {
    let began = Instant::now();
    let sent: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
    let mut output = stream.try_clone().expect("a second handle");
    let copy = sent.clone();
    let writer = thread::spawn(move || output.write_all(&copy));
    let mut got = vec![0; bytes];
    stream.read_exact(&mut got).expect("they come back");
    writer.join().expect("a writer").expect("they went");
    assert!(got == sent, "unchanged and in order");
    began.elapsed()
}

/// Whether nothing comes for a while.
fn is_silent(stream: &mut TcpStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("not zero");
    let answer = stream.read(&mut [0; 1]);
    stream.set_read_timeout(Some(seconds(5))).expect("not zero");
    matches!(answer, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn passes_everything_unchanged() {
    let link = echo();
    round_trip(&mut connect(&link), 3_000_000);
}

#[test]
fn forgets_a_connection_that_was_closed() {
    let link = echo();
    let mut stream = connect(&link);
    round_trip(&mut stream, 10);
    assert_eq!(link.connections(), 1);
    drop(stream);
    wait("the connection to be gone", seconds(5), || {
        let open = link.connections();
        check(open == 0, || format!("{open} open"))
    });
}

#[test]
fn cut_resets_open_and_new_connections_until_healed() {
    let link = echo();
    let mut stream = connect(&link);
    round_trip(&mut stream, 10);
    link.cut();
    let error = stream.read(&mut [0; 1]).expect_err("it was reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let refused = TcpStream::connect(("127.0.0.1", link.port())).and_then(|mut stream| {
        stream.set_read_timeout(Some(seconds(5)))?;
        stream.read(&mut [0; 1])
    });
    assert!(refused.is_err(), "a new one is reset: {refused:?}");
    link.heal();
    round_trip(&mut connect(&link), 10);
}

#[test]
fn holds_one_direction_and_passes_it_when_healed() {
    for direction in [Direction::ToBroker, Direction::ToClient] {
        let link = echo();
        let mut stream = connect(&link);
        link.set(direction, Flow::Held);
        stream.write_all(b"held").expect("it is taken");
        assert!(is_silent(&mut stream), "{direction:?}");
        link.heal();
        let mut got = [0; 4];
        stream.read_exact(&mut got).expect("it comes");
        assert_eq!(&got, b"held");
    }
}

#[test]
fn cut_ends_what_is_held() {
    let link = echo();
    let mut stream = connect(&link);
    round_trip(&mut stream, 10);
    link.set_both(Flow::Held);
    stream.write_all(b"lost").expect("it is taken");
    link.cut();
    link.heal();
    assert!(stream.read(&mut [0; 1]).is_err());
    round_trip(&mut connect(&link), 10);
}

#[test]
fn delays_without_costing_throughput() {
    let link = echo();
    let mut stream = connect(&link);
    link.set(Direction::ToBroker, Flow::Delayed(Duration::from_millis(150)));
    let took = round_trip(&mut stream, 2_000_000);
    assert!(took >= Duration::from_millis(150), "{took:?}");
    assert!(took < seconds(4), "{took:?}");
}

#[test]
fn throttles_to_the_rate() {
    let link = echo();
    let mut stream = connect(&link);
    link.set(Direction::ToClient, Flow::Throttled(100_000));
    let took = round_trip(&mut stream, 60_000);
    assert!(took >= Duration::from_millis(500), "{took:?}");
}
