//! Connections to the upstream that say when a read of the socket completed.
//!
//! Apart because pingora hands a reply's body over chunk by chunk: several chunks may come of one read, and each
//! would seem to have arrived when it was handed over. A stamp is of the read. Must not know: HTTP.
//!
//! The socket lies under pingora's buffers, and the stamp has to come out beside them. It does through a cell of the
//! thread: a socket is only read while somebody polls for its bytes, so that [`watched`] empties the cell before each
//! poll and looks into it after.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora::connectors::l4::Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::{Error, ErrorType, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::clock::monotonic_ns;

thread_local! {
    /// When the last read of a socket on this thread completed, in monotonic nanoseconds.
    static LAST_READ_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Waits for what reads a connection, and gives with it when the read that completed it did: None if all of it had
/// been read before.
pub async fn watched<T>(reading: impl Future<Output = T>) -> (Option<u64>, T) {
    let mut reading = pin!(reading);
    let mut read_ns = None;
    std::future::poll_fn(move |context| {
        LAST_READ_NS.take();
        let polled = reading.as_mut().poll(context);
        read_ns = LAST_READ_NS.take().or(read_ns);
        polled.map(|value| (read_ns, value))
    })
    .await
}

/// Makes such connections.
#[derive(Debug)]
pub struct StampedConnect;

#[async_trait]
impl Connect for StampedConnect {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                _ => ErrorType::ConnectError,
            };
            Error::because(kind, format!("connecting to {address}"), error)
        };
        let socket: Box<dyn VirtualSocket> = match address {
            SocketAddr::Inet(address) => {
                let stream = TcpStream::connect(address).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Box::new(Stamped(stream))
            }
            SocketAddr::Unix(address) => {
                let path = address.as_pathname().ok_or_else(|| {
                    Error::explain(ErrorType::ConnectError, "the upstream's socket has no path")
                })?;
                Box::new(Stamped(UnixStream::connect(path).await.map_err(failed)?))
            }
        };
        Ok(Stream::from(VirtualSocketStream::new(socket)))
    }
}

#[derive(Debug)]
struct Stamped<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Stamped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.0).poll_read(context, buffer);
        if polled.is_ready() {
            LAST_READ_NS.set(Some(monotonic_ns()));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stamped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl VirtualSocket for Stamped<TcpStream> {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        match option {
            VirtualSockOpt::NoDelay => self.0.set_nodelay(true),
            // Not asked for: a dead upstream is noticed by the deadlines.
            _ => Ok(()),
        }
    }
}

impl VirtualSocket for Stamped<UnixStream> {
    fn set_socket_option(&self, _option: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

    #[tokio::test]
    async fn what_one_read_brought_has_one_stamp() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut near = BufReader::new(Stamped(near));
        far.write_all(b"ab").await.unwrap();
        let before = monotonic_ns();
        let (first, byte) = watched(near.read_u8()).await;
        assert_eq!(byte.unwrap(), b'a');
        assert!(first.is_some_and(|ns| ns >= before && ns <= monotonic_ns()));
        let (second, byte) = watched(near.read_u8()).await;
        assert_eq!(byte.unwrap(), b'b');
        assert_eq!(second, None);
        far.write_all(b"c").await.unwrap();
        let (third, byte) = watched(near.read_u8()).await;
        assert_eq!(byte.unwrap(), b'c');
        assert!(third > first);
    }
}
