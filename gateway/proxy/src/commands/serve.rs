//! `pitot serve`: the gateway in front of a server that runs already.
//!
//! Apart because `up` serves in the same way, with an engine of its own. Must not know: the engine process.

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora::services::Service as _;
use pingora::services::listening::Service;
use pitot_config::{Log, LogFormat, Sources, gateway};
use tracing_subscriber::EnvFilter;

use crate::admin;
use crate::app::App;
use crate::forward::Forwarder;
use crate::front::Front;
use crate::shutdown::{Never, Shutdown};
use crate::supervise::Pace;

/// Idle connections to the upstream that are kept by each thread.
const POOL_SIZE: usize = 256;

/// Where the gateway listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub applications: SocketAddr,
    pub admin: SocketAddr,
}

/// Runs the gateway until it is told to stop.
pub fn run(sources: &Sources) -> anyhow::Result<ExitCode> {
    let resolved = gateway::resolve(sources)?;
    start_logging(resolved.settings.log);
    let app = App::new(resolved.settings)?;
    let addresses = open(&app)?;
    tracing::info!(
        endpoint = %format!("http://{}/v1", addresses.applications),
        admin = %format!("http://{}", addresses.admin),
        upstream = %app.settings.upstream.address,
        "serving"
    );
    serve(&app, addresses, &Shutdown::default())?;
    Ok(ExitCode::SUCCESS)
}

/// Logs to the standard error stream, in colour on a terminal only.
pub fn start_logging(log: Log) {
    let level = log.level.name();
    // pingora logs each caller that leaves as an error; what matters of it is in our own records.
    let quiet = ["pingora", "pingora_core", "pingora_proxy", "pingora_pool", "pingora_runtime"];
    let filter = quiet.iter().fold(level.to_owned(), |filter, name| format!("{filter},{name}=off"));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Human => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            subscriber.with_ansi(colours).with_target(false).init();
        }
        LogFormat::Json => subscriber.json().init(),
    }
}

/// Finds out whether both addresses are free, starts the admin listener, and says where both are.
pub fn open(app: &Arc<App>) -> anyhow::Result<Addresses> {
    let asked = app.settings.listen.address;
    // pingora binds when it starts and panics if it cannot; a try beforehand gives a message instead, and the
    // number of a free port where 0 was asked for.
    let trial = TcpListener::bind(asked).with_context(|| {
        format!("cannot listen on {asked} (listen.address); is a gateway running already?")
    })?;
    let applications = trial.local_addr()?;
    drop(trial);
    // A gateway is opened once, so nothing else has been said here before.
    let _ = app.listening.set(applications);
    let admin = admin::start(Arc::clone(app), app.settings.listen.admin_address)?;
    Ok(Addresses { applications, admin })
}

/// Serves until the shutdown is asked for and running requests have finished. Blocks; the process ends with it.
pub fn serve(app: &Arc<App>, addresses: Addresses, shutdown: &Shutdown) -> anyhow::Result<Pace> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, lost) = tokio::sync::oneshot::channel();
    let serving = Arc::clone(app);
    std::thread::Builder::new().name("proxy".into()).spawn(move || {
        run_proxy(&serving, addresses);
        // Nobody waits any more if the process is ending already.
        let _ = ended.send(());
    })?;
    let done = runtime.block_on(async {
        tokio::select! {
            drained = shutdown.drained(app) => drained.context("signals cannot be received"),
            _ = lost => Err(anyhow::anyhow!("the proxy service ended unexpectedly")),
        }
    });
    app.link.stop();
    app.emitter.flush();
    done
}

fn run_proxy(app: &Arc<App>, addresses: Addresses) {
    let threads = app.settings.listen.threads.get();
    let conf = ServerConf {
        threads,
        // Runtimes of one thread each move no stream between threads: a quarter less CPU per chunk.
        work_stealing: false,
        upstream_keepalive_pool_size: POOL_SIZE,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let forwarder = Arc::new(Forwarder::new(Arc::clone(app)));
    let front = Front::new(forwarder, &server.configuration);
    let mut service = Service::new("applications".to_owned(), front);
    service.add_tcp(&addresses.applications.to_string());
    tracing::debug!(name = service.name(), threads, "starting the proxy service");
    server.add_service(service);
    server.run(RunArgs { shutdown_signal: Box::new(Never) });
}
