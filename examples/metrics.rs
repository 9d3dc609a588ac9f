//! Metrics of a service: exports the statistics of a runtime in Prometheus' text format, over a plain TCP listener.
//!
//! ```sh
//! cargo run --release --example metrics
//! ```
//!
//! A real service would serve until it is stopped, on the port that Prometheus scrapes. This example ends by itself: a
//! client in the same process scrapes before and after some launches, and checks what changed.

#![allow(clippy::print_stdout)]
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt::Write as _;

use futures::io::{AsyncReadExt, AsyncWriteExt};
use kiln::Runtime;
use smol::net::{SocketAddr, TcpListener, TcpStream};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

kiln::kernels! {
    mod work = opencl_c("
        kernel void scale(float factor, global float *x) {
            x[get_global_id(0)] *= factor;
        }
    ");
}

/// Number of elements of the buffer that the launches change.
const ELEMENTS: usize = 1 << 20;

const LAUNCHES: u64 = 100;

/// Names of the metrics from [`kiln::Stats`] that state the present. The others only grow.
const GAUGES: [&str; 4] =
    ["memory_programs", "memory_bytes", "memory_bytes_estimated", "commands_in_flight"];

fn main() -> Outcome<()> {
    smol::block_on(async {
        let rt = Runtime::new().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        println!("serving http://{address}/metrics for {}", rt.device());
        // The task ends when it is dropped, at the end of this block.
        let _server = smol::spawn(serve(rt.clone(), listener));

        let before = scrape(address).await?;
        let x = rt.buffer_from(vec![1.0f32; ELEMENTS]).await?;
        let kernels = work::Kernels::build(&rt).await?;
        for _ in 0..LAUNCHES {
            rt.queue().submit(kernels.scale(ELEMENTS, 1.0, &x))?;
        }
        rt.drain().await;
        let after = scrape(address).await?;

        print!("{after}");
        let grown = |name: &str| value(&after, name) - value(&before, name);
        assert_eq!(grown("kiln_launches_submitted_total"), LAUNCHES as f64);
        assert_eq!(grown("kiln_device_memory_used_bytes"), (ELEMENTS * size_of::<f32>()) as f64);
        Ok(())
    })
}

/// Answers requests, one connection after another.
async fn serve(rt: Runtime, listener: TcpListener) {
    loop {
        // A client that disconnects early is no reason to stop.
        if let Ok((stream, _)) = listener.accept().await
            && let Err(error) = answer(&rt, stream).await
        {
            println!("a request failed: {error}");
        }
    }
}

/// Answers one HTTP request with the metrics, whatever it asks for.
async fn answer(rt: &Runtime, mut stream: TcpStream) -> Outcome<()> {
    let mut request = Vec::new();
    let mut piece = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece).await? {
            0 => return Err("the client closed the connection".into()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let body = metrics(rt)?;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(stream.close().await?)
}

/// Returns the statistics in Prometheus' text format.
fn metrics(rt: &Runtime) -> Outcome<String> {
    let mut text = String::new();
    // The names of the metrics are those of the groups and fields, so that new fields are exported, too.
    let stats = serde_json::to_value(rt.stats())?;
    for (group, fields) in stats.as_object().into_iter().flatten() {
        for (field, value) in fields.as_object().into_iter().flatten() {
            let metric = format!("{group}_{field}");
            let is_gauge = GAUGES.contains(&&*metric);
            let (kind, suffix) = if is_gauge { ("gauge", "") } else { ("counter", "_total") };
            let name = format!("kiln_{metric}{suffix}");
            writeln!(text, "# TYPE {name} {kind}\n{name} {value}")?;
        }
    }
    let devices = rt.device_stats();
    let mut gauge = |name: &str, value: fn(&kiln::stats::DeviceStats) -> u64| {
        writeln!(text, "# TYPE kiln_device_{name} gauge")?;
        for device in &devices {
            let (index, label) = (device.index, escape(&device.name));
            let value = value(device);
            writeln!(text, "kiln_device_{name}{{index=\"{index}\",name=\"{label}\"}} {value}")?;
        }
        Ok::<_, std::fmt::Error>(())
    };
    gauge("memory_used_bytes", |device| device.memory_used)?;
    gauge("memory_total_bytes", |device| device.memory_total)?;
    gauge("commands_in_flight", |device| device.commands_in_flight)?;
    Ok(text)
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Requests the metrics as Prometheus does.
async fn scrape(address: SocketAddr) -> Outcome<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("the response has no body")?;
    match head.starts_with("HTTP/1.1 200") {
        true => Ok(body.to_owned()),
        false => Err(head.to_owned().into()),
    }
}

/// Returns the sum of the values of a metric over its labels.
fn value(metrics: &str, name: &str) -> f64 {
    let values = metrics.lines().filter_map(|line| {
        let (metric, value) = line.rsplit_once(' ')?;
        let is_wanted =
            metric.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
        is_wanted.then(|| value.parse::<f64>().ok()).flatten()
    });
    values.sum()
}
