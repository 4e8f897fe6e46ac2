//! A caller in HTTP/2 without TLS, by prior knowledge.
//!
//! Apart because its framing is a library's and its flow control has no counterpart in HTTP/1.1. Each caller has a
//! runtime of its own on its own thread. Must not know: what a case expects.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Reason, RecvStream};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::caller::{Ended, Errand, REPLY_MAX, Reply, find};
use super::case::{Leaves, Leaving, Pace, Sending};

/// Bytes that a caller takes before it has read any. Small, so that one that stalls holds the gateway up.
const WINDOW_BYTES: u32 = 64 * 1024;

pub struct H2Caller {
    gateway: SocketAddr,
    runtime: Runtime,
    kept: Option<Connection>,
}

struct Connection {
    requests: SendRequest<Bytes>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl H2Caller {
    pub fn new(gateway: SocketAddr) -> std::io::Result<H2Caller> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(H2Caller { gateway, runtime, kept: None })
    }

    pub fn call(&mut self, errand: &Errand<'_>) -> std::io::Result<Reply> {
        let H2Caller { gateway, runtime, kept } = self;
        let kept_connection = kept.take();
        let (reply, connection) = runtime.block_on(exchange(*gateway, kept_connection, errand))?;
        *kept = connection;
        // Lets the runtime close what was dropped.
        runtime.block_on(tokio::task::yield_now());
        Ok(reply)
    }
}

async fn connect(gateway: SocketAddr) -> std::io::Result<Connection> {
    let stream = TcpStream::connect(gateway).await?;
    stream.set_nodelay(true)?;
    let (requests, connection) = client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        // Cases that come byte by byte are meant to.
        .data_frame_budget(usize::MAX)
        .handshake(stream)
        .await
        .map_err(std::io::Error::other)?;
    let driver = tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(Connection { requests, driver })
}

async fn exchange(
    gateway: SocketAddr,
    kept: Option<Connection>,
    errand: &Errand<'_>,
) -> std::io::Result<(Reply, Option<Connection>)> {
    let kept = match kept {
        Some(connection) => match connection.requests.clone().ready().await {
            Ok(_) => Some(connection),
            Err(_) => None,
        },
        None => None,
    };
    let connection = match kept {
        Some(connection) => connection,
        None => connect(gateway).await?,
    };
    let mut reply = Reply::nothing();
    let outcome = tokio::time::timeout(REPLY_MAX, converse(&connection, errand, &mut reply)).await;
    let leaving = match outcome {
        Ok(Ok(leaving)) => leaving,
        Ok(Err(error)) => {
            reply.ended = Ended::Broken(error.to_string());
            return Ok((reply, None));
        }
        Err(_) => {
            reply.ended = Ended::Broken("it did not end in time".to_owned());
            return Ok((reply, None));
        }
    };
    let Some(leaving) = leaving else { return Ok((reply, Some(connection))) };
    reply.ended = Ended::Left;
    if leaving == Leaving::Reset {
        // The stream has been reset; give the connection the time to say so before it is closed.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok((reply, None))
}

/// Sends and reads. Gives how the caller left, if it did.
async fn converse(
    connection: &Connection,
    errand: &Errand<'_>,
    reply: &mut Reply,
) -> Result<Option<Leaving>, h2::Error> {
    let mut requests = connection.requests.clone().ready().await?;
    let bodiless = errand.body.is_empty();
    let (response, mut sending) = requests.send_request(request(errand), bodiless)?;
    if let Leaves::WithinRequest(leaving) = errand.leaves {
        sending.send_data(errand.body.slice(..errand.body.len() / 2), false)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        sending.send_reset(Reason::CANCEL);
        reply.left_at = Some(Instant::now());
        return Ok(Some(*leaving));
    }
    if !bodiless {
        send_body(&mut sending, errand).await?;
    }
    reply.sent_at = Instant::now();
    if let Pace::Stalls { text: "", time } = errand.pace {
        tokio::time::sleep(*time).await;
    }
    let response = match leaving_after(errand.leaves, reply.sent_at, response).await {
        Ok(response) => response?,
        Err(leaving) => {
            sending.send_reset(Reason::CANCEL);
            reply.left_at = Some(Instant::now());
            return Ok(Some(leaving));
        }
    };
    let now = Instant::now();
    reply.head_at = Some(now);
    reply.status = Some(response.status().as_u16());
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    reply.headers =
        response.headers().iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let left = read_body(response.into_body(), errand, reply).await;
    if let Ok(Some(_)) = left {
        sending.send_reset(Reason::CANCEL);
    }
    left
}

fn request(errand: &Errand<'_>) -> http::Request<()> {
    let mut request = http::Request::new(());
    *request.method_mut() = errand.request.method.parse().unwrap_or_default();
    *request.uri_mut() = format!("http://gateway{}", errand.path()).parse().unwrap_or_default();
    *request.version_mut() = http::Version::HTTP_2;
    let lines = errand.request.lines.lines().filter_map(|line| line.split_once(':'));
    let own = [("x-request-id", errand.id), ("content-type", "application/json")];
    for (name, value) in own.into_iter().chain(lines) {
        let name = http::HeaderName::from_bytes(name.trim().as_bytes());
        let value = http::HeaderValue::from_str(value.trim());
        if let (Ok(name), Ok(value)) = (name, value) {
            request.headers_mut().append(name, value);
        }
    }
    request
}

async fn send_body(sending: &mut h2::SendStream<Bytes>, errand: &Errand<'_>) -> Result<(), h2::Error> {
    let (size, ends_empty) = match errand.request.sending {
        Sending::AtOnce | Sending::Expecting => (usize::MAX, false),
        Sending::InChunks(size) => (size.max(1), true),
        Sending::ByteByByte => (1, false),
        Sending::InHalves(_) => (errand.body.len().div_ceil(2), false),
    };
    let mut body = errand.body.clone();
    while !body.is_empty() {
        let want = body.len().min(size);
        sending.reserve_capacity(want);
        let capacity = loop {
            match std::future::poll_fn(|context| sending.poll_capacity(context)).await {
                Some(Ok(0)) => {}
                Some(Ok(capacity)) => break capacity,
                // The gateway has answered and reads no more; what it said is to be read.
                Some(Err(_)) | None => return Ok(()),
            }
        };
        let piece = body.split_to(want.min(capacity));
        let last = body.is_empty() && !ends_empty;
        if let Sending::InHalves(pause) = errand.request.sending
            && last
        {
            tokio::time::sleep(pause).await;
        }
        if sending.send_data(piece, last).is_err() {
            return Ok(());
        }
    }
    if ends_empty {
        let _ = sending.send_data(Bytes::new(), true);
    }
    Ok(())
}

/// Waits for something unless the caller's time to leave comes first.
async fn leaving_after<T>(
    leaves: &Leaves,
    sent_at: Instant,
    what: impl Future<Output = T>,
) -> Result<T, Leaving> {
    let Leaves::After(time, leaving) = leaves else { return Ok(what.await) };
    let until = tokio::time::Instant::from_std(sent_at + *time);
    tokio::time::timeout_at(until, what).await.map_err(|_| *leaving)
}

async fn read_body(
    mut body: RecvStream,
    errand: &Errand<'_>,
    reply: &mut Reply,
) -> Result<Option<Leaving>, h2::Error> {
    let mut stalled = matches!(errand.pace, Pace::Stalls { text: "", .. });
    loop {
        if let Leaves::Seeing(text, leaving) = errand.leaves
            && find(&reply.body, text.as_bytes()).is_some()
        {
            reply.left_at = Some(Instant::now());
            return Ok(Some(*leaving));
        }
        if let Pace::Stalls { text, time } = errand.pace
            && !stalled
            && find(&reply.body, text.as_bytes()).is_some()
        {
            stalled = true;
            tokio::time::sleep(*time).await;
        }
        let data = match leaving_after(errand.leaves, reply.sent_at, body.data()).await {
            Ok(data) => data,
            Err(leaving) => {
                reply.left_at = Some(Instant::now());
                return Ok(Some(leaving));
            }
        };
        match data {
            Some(Ok(bytes)) => {
                reply.body.extend_from_slice(&bytes);
                reply.reads.push((Instant::now(), reply.body.len()));
                body.flow_control().release_capacity(bytes.len())?;
            }
            Some(Err(error)) => {
                reply.ended = Ended::Broken(format!("the stream was reset: {error}"));
                return Ok(None);
            }
            None => {
                reply.ended = Ended::Complete;
                return Ok(None);
            }
        }
    }
}
