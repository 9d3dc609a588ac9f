//! HTTP service on axum and tokio that computes pictures of the Mandelbrot set on the device.
//!
//! ```sh
//! cargo run --release -p tokio_service                       # calls itself, then ends
//! cargo run --release -p tokio_service -- --serve 127.0.0.1:8080
//! curl 'http://127.0.0.1:8080/mandelbrot?width=640&height=480&x=-0.745&y=0.11&zoom=50' >set.png
//! curl 'http://127.0.0.1:8080/stats'
//! ```
//!
//! It shows how requests share builds: each handler requests the program it needs, and takes its typed
//! kernel. The first request compiles it, concurrent ones await the same build, and later ones find it
//! in memory. It also shows that no code is needed for clients that disconnect: axum drops the handler,
//! and Kiln keeps what the device still uses. On SIGTERM or Ctrl-C the service accepts no further
//! requests, answers the ones in progress, and waits until the device has no work left and all programs
//! are stored.
//!
//! Without arguments, it sends itself many requests at once, checks every reply against the same
//! computation on the host, and prints the number of compiles.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use kiln::{ErrorKind, Module, Runtime};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

kiln::kernels! {
    mod sets = opencl_c("
        // The device rounds like the host, so that the two can be compared exactly.
        #pragma OPENCL FP_CONTRACT OFF

        // Counts for each pixel how many iterations its point takes to leave the circle of radius 2. The
        // count becomes the pixel, an index into a palette; 0 is for points that stay.
        kernel void mandelbrot(uint width, uint height, float left, float top, float step,
                               global uchar *pixels) {
            size_t column = get_global_id(0), row = get_global_id(1);
            if (column >= width || row >= height)
                return;
            float cx = left + step * column, cy = top + step * row;
            float x = 0.0f, y = 0.0f;
            uint count = 0;
            while (count < ITERATIONS && x * x + y * y <= 4.0f) {
                float next = x * x - y * y + cx;
                y = 2.0f * x * y + cy;
                x = next;
                ++count;
            }
            pixels[row * width + column] = count < ITERATIONS ? 1 + count % 255 : 0;
        }
    ");
}

/// Work-items of a work-group, in both dimensions. Otherwise the driver chooses by the size of each
/// picture, and some drivers compile a kernel again for every size they choose.
const GROUP: usize = 8;

/// Numbers of iterations that clients can choose from. Each one is a separate program. If clients could
/// request any number, the service would spend its time compiling.
const ITERATIONS: [u32; 3] = [100, 200, 400];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let serve = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--serve", address] => Some(address.to_owned()),
        _ => return Err("usage: tokio_service [--serve ADDRESS:PORT]".into()),
    };
    let rt = Runtime::new().await?;
    println!("{}, {}", rt.device(), rt.device().platform);
    let service = Router::new()
        .route("/mandelbrot", get(mandelbrot))
        .route("/stats", get(stats))
        .with_state(Service { rt: rt.clone(), module: sets::Kernels::module()? });

    let listener = TcpListener::bind(serve.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    if serve.is_some() {
        axum::serve(listener, service).with_graceful_shutdown(termination()).await?;
        println!("shutting down");
        rt.drain().await;
        return Ok(());
    }
    tokio::spawn(async move { axum::serve(listener, service).await });
    check_service(address).await?;
    // Programs are stored in the background, after the requests.
    rt.drain().await;
    Ok(())
}

/// Completes when the service is to shut down. `Runtime::new` has loaded the drivers, which register
/// handlers for the same signals; Kiln reverts that.
async fn termination() {
    let interrupted = async { tokio::signal::ctrl_c().await.expect("Ctrl-C can be handled") };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminated = signal(SignalKind::terminate()).expect("SIGTERM can be handled");
        tokio::select! {
            () = interrupted => {}
            _ = terminated.recv() => {}
        }
    }
    #[cfg(not(unix))]
    interrupted.await;
}

/// State that all requests share. Both fields are handles, cheap to clone.
#[derive(Clone)]
struct Service {
    rt: Runtime,
    module: Module,
}

/// Parameters of a request.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct View {
    width: usize,
    height: usize,
    x: f32,
    y: f32,
    zoom: f32,
    iterations: u32,
}

impl Default for View {
    fn default() -> Self {
        Self { width: 320, height: 240, x: -0.6, y: 0.0, zoom: 1.0, iterations: ITERATIONS[0] }
    }
}

impl View {
    /// Rejects parameters that would take too long, too much memory, or more than single precision.
    fn check(&self) -> Result<(), Failure> {
        let refuse = |why: String| Err(Failure(StatusCode::BAD_REQUEST, why));
        if ![self.width, self.height].iter().all(|size| (1..=1024).contains(size)) {
            return refuse("width and height must be 1 to 1024".into());
        }
        if ![self.x, self.y].iter().all(|position| (-2.0..=2.0).contains(position)) {
            return refuse("x and y must be -2 to 2".into());
        }
        if !(0.5..=10_000.0).contains(&self.zoom) {
            return refuse("zoom must be 0.5 to 10000".into());
        }
        if !ITERATIONS.contains(&self.iterations) {
            return refuse(format!("iterations must be one of {ITERATIONS:?}"));
        }
        Ok(())
    }

    /// Returns the left and top edge, and the distance from pixel to pixel, in the plane.
    fn plane(&self) -> (f32, f32, f32) {
        let step = 3.0 / (self.zoom * self.width.max(self.height) as f32);
        (self.x - step * self.width as f32 / 2.0, self.y - step * self.height as f32 / 2.0, step)
    }
}

/// Handles `GET /mandelbrot`: returns a PNG file.
async fn mandelbrot(
    State(Service { rt, module }): State<Service>,
    Query(view): Query<View>,
) -> Result<Response, Failure> {
    view.check()?;
    let options = format!("-D ITERATIONS={}", view.iterations);
    let program = rt.build(&module).options(&options).checked().await?;
    let kernels = sets::Kernels::from_program(&program)?;
    let View { width, height, .. } = view;
    let pixels = rt.buffer::<u8>(width * height)?;
    let (left, top, step) = view.plane();
    let range = [width, height].map(|size| size.next_multiple_of(GROUP));
    let [columns, rows] = [width, height].map(|size| size as u32);
    let queue = rt.queue();
    let launch = kernels.mandelbrot(range, columns, rows, left, top, step, pixels.write_only());
    let _launched = queue.submit(launch.local([GROUP; 2]))?;
    let pixels = queue.read(&pixels).await?;
    // Compressing takes milliseconds, so it runs outside the threads that serve requests.
    let png = tokio::task::spawn_blocking(move || encode(&view, &pixels)).await??;
    Ok(([(header::CONTENT_TYPE, "image/png")], png).into_response())
}

/// Handles `GET /stats`: returns some of the runtime's counters.
async fn stats(State(Service { rt, .. }): State<Service>) -> Json<serde_json::Value> {
    let stats = rt.stats();
    Json(json!({
        "builds": stats.builds,
        "memory": stats.memory,
        "disk": stats.disk,
        "launches": stats.launches.submitted,
        "commands_in_flight": stats.commands.in_flight,
    }))
}

/// Response to a client if there is no picture.
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl From<kiln::Error> for Failure {
    fn from(error: kiln::Error) -> Self {
        // The client's input was checked before, so the service is at fault.
        let status = match error.kind() {
            ErrorKind::OutOfResources => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

impl From<png::EncodingError> for Failure {
    fn from(error: png::EncodingError) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl From<tokio::task::JoinError> for Failure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

fn encode(view: &View, pixels: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let wave = |i: f32, phase: f32| (127.5 - 127.5 * (i / 9.0 + phase).cos()) as u8;
    let colours =
        (1..256u16).map(f32::from).flat_map(|i| [wave(i, 0.2), wave(i, 0.6), wave(i, 1.2)]);
    let palette: Vec<u8> = [0; 3].into_iter().chain(colours).collect();
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, view.width as u32, view.height as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(png)
}

// The rest is the client that checks the service.

const REQUESTS: usize = 64;

async fn check_service(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let views = (0..REQUESTS).map(|i| View {
        width: 200 + i,
        height: 150 + i,
        x: -0.745 - 0.001 * i as f32,
        y: 0.11,
        zoom: 1.0 + i as f32,
        iterations: ITERATIONS[i % ITERATIONS.len()],
    });
    let mut requests = JoinSet::new();
    for view in views {
        requests.spawn(async move {
            let View { width, height, x, y, zoom, iterations } = view;
            let path = format!(
                "/mandelbrot?width={width}&height={height}&x={x}&y={y}&zoom={zoom}\
                 &iterations={iterations}"
            );
            let start = Instant::now();
            let reply = fetch(address, &path).await;
            (view, reply.map_err(|error| error.to_string()), start.elapsed())
        });
    }
    let mut latencies: Vec<Duration> = Vec::new();
    while let Some(request) = requests.join_next().await {
        let (view, reply, latency) = request?;
        let (status, body) = reply?;
        if status != 200 {
            return Err(format!("{status} for {view:?}: {}", String::from_utf8_lossy(&body)).into());
        }
        check_picture(&view, &body).map_err(|why| format!("{view:?}: {why}"))?;
        latencies.push(latency);
    }
    for (path, expected) in [
        ("/mandelbrot", 200),
        ("/mandelbrot?width=0", 400),
        ("/mandelbrot?height=100000", 400),
        ("/mandelbrot?zoom=NaN", 400),
        ("/mandelbrot?x=left", 400),
        ("/mandelbrot?iterations=101", 400),
        ("/julia", 404),
    ] {
        let (status, _) = fetch(address, path).await?;
        if status != expected {
            return Err(format!("{path}: status {status}, expected {expected}").into());
        }
    }

    let (_, body) = fetch(address, "/stats").await?;
    let stats: serde_json::Value = serde_json::from_slice(&body)?;
    let count = |group: &str, name: &str| stats[group][name].as_u64().unwrap_or(0);
    // Up to four for each number of iterations: the text's program, the translation that is checked, the
    // program that is compiled from it, and a variant with guards if a launch is not proven.
    let programs = ITERATIONS.len() as u64;
    if !(programs..=4 * programs).contains(&(count("builds", "compiles") + count("disk", "hits"))) {
        return Err(format!("{programs} programs, but: {stats}").into());
    }
    latencies.sort_unstable();
    println!(
        "{REQUESTS} requests at once, all pictures as expected; {} compiles, {} programs from the disk, \
         {} requests that waited for one of these, {} that found the program in memory",
        count("builds", "compiles"),
        count("disk", "hits"),
        count("builds", "joined"),
        count("memory", "hits")
    );
    println!(
        "latency, builds included: {:.1} ms median, {:.1} ms at most",
        1e3 * latencies[latencies.len() / 2].as_secs_f64(),
        1e3 * latencies[latencies.len() - 1].as_secs_f64()
    );
    Ok(())
}

/// Returns the status and the body of a reply to a plain HTTP/1.1 request.
async fn fetch(address: SocketAddr, path: &str) -> Result<(u16, Vec<u8>), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    let end =
        reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("no head in the reply")?;
    let head = std::str::from_utf8(&reply[..end])?;
    let status = head.split(' ').nth(1).ok_or("no status in the reply")?.parse()?;
    Ok((status, reply.split_off(end + 4)))
}

/// Compares a reply with the same computation on the host.
fn check_picture(view: &View, png: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info()?;
    let size = (reader.info().width as usize, reader.info().height as usize);
    if size != (view.width, view.height) {
        return Err(format!("the picture's size is {size:?}").into());
    }
    let mut pixels = vec![0; view.width * view.height];
    reader.next_frame(&mut pixels)?;
    let (left, top, step) = view.plane();
    // Only every 16th row is checked: that suffices, and the host is slow at it.
    for row in (0..view.height).step_by(16) {
        for column in 0..view.width {
            let (cx, cy) = (left + step * column as f32, top + step * row as f32);
            let expected = pixel(cx, cy, view.iterations);
            let found = pixels[row * view.width + column];
            if found != expected {
                return Err(format!("({column}, {row}) is {found}, expected {expected}").into());
            }
        }
    }
    Ok(())
}

/// Computes a pixel on the host, like the kernel.
fn pixel(cx: f32, cy: f32, iterations: u32) -> u8 {
    let (mut x, mut y) = (0.0f32, 0.0f32);
    for count in 0..iterations {
        if x * x + y * y > 4.0 {
            return (1 + count % 255) as u8;
        }
        (x, y) = (x * x - y * y + cx, 2.0 * x * y + cy);
    }
    0
}
