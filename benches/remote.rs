//! Cost of a remote cache: a hit, relative to a plain client's GET of the same object from the same service,
//! and a cold start with a service that has no programs, is slow, or hangs, relative to a start without a
//! remote cache.
//!
//! `cargo bench --bench remote --all-features`. Needs a `redis-server`, and for S3 the `moto_server` of
//! `make services`. Prints ratios of medians, each with its goal.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[allow(dead_code, unreachable_pub, reason = "tests use the rest")]
#[path = "../tests/remote/machines/mod.rs"]
mod machines;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};

use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Runtime};
use machines::proxy::{Mode, Proxy};
use machines::services::{Client, Redis, S3};

/// Number of programs that are loaded, each once, for every service and size.
const ROUNDS: usize = 200;

/// Delay of each part of an answer that simulates another machine.
const PROXY_DELAY: Duration = Duration::from_millis(1);

/// Size of the largest program that arrives in few parts. Larger programs arrive in many parts, one after the
/// other, so that the proxy would dominate the time.
const FEW_PARTS: usize = 64 << 10;

const SIZES: [(&str, usize); 3] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

/// Number of rounds of cold starts.
const STARTS: usize = 5;

/// Number of programs in each cold start.
const PROGRAMS: usize = 60;

/// Time of each compile in a cold start.
const COMPILE: Duration = Duration::from_millis(100);

fn main() {
    if let Some(redis) = Redis::start(&[]) {
        let distant = Proxy::to(redis.address());
        distant.set(Mode::Slow(PROXY_DELAY));
        let places = [
            ("Redis".to_owned(), redis.url(), redis.address()),
            (format!("a Redis {PROXY_DELAY:?} away"), distant.redis_url(), distant.address),
        ];
        for (name, bytes) in SIZES {
            redis.send(&[b"FLUSHALL"]);
            publish(&redis.url(), bytes);
            let places = if bytes > FEW_PARTS { &places[..1] } else { &places };
            for (place, url, address) in places {
                let mut client = Client::connect(*address);
                let get =
                    |key: &String| client.send(&[b"GET", key.as_bytes()]).expect("it is there");
                hit(&format!("{name} from {place}"), url, bytes, &redis.keys(), get);
            }
        }
        cold_starts(&redis);
    }
    for (name, bytes) in SIZES {
        let Some(s3) = S3::start() else { return };
        let url = s3.url();
        publish(&url, bytes);
        hit(&format!("{name} from S3"), &url, bytes, &paths(&s3), |path| get(&s3, path));
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns program `number` of the given size.
fn module(number: usize, bytes: usize) -> Module {
    Module::opencl_c(format!(
        "#pragma binary_size {bytes}\nkernel void noop_{number}(global uint *x) {{}}"
    ))
}

fn runtime(simulator: &Simulator, cache: CacheConfig) -> Runtime {
    block_on(Runtime::builder().simulator(simulator).cache(cache).build()).expect("it starts")
}

/// Stores programs of the given size in a service.
fn publish(url: &str, bytes: usize) {
    // The long time-out keeps writes from failing because the service is slow.
    let cache = CacheConfig::memory_only().remote(url).remote_timeout(Duration::from_secs(60));
    let rt = runtime(&Simulator::immediate(), cache);
    block_on(async {
        let builds = (0..ROUNDS).map(|number| rt.build(&module(number, bytes)).start());
        for built in join_all(builds.collect::<Vec<_>>()).await {
            built.expect("it builds");
        }
        rt.drain().await;
    });
}

/// Measures the wait for programs that a service has, relative to the wait for their objects by a plain client,
/// which blocks the thread, or which another thread awaits.
fn hit(
    name: &str,
    url: &str,
    bytes: usize,
    objects: &[String],
    get: impl FnMut(&String) -> Vec<u8> + Send,
) {
    assert_eq!(objects.len(), ROUNDS);
    let disk = tempfile::tempdir().expect("there is room");
    // The first use of a build lock creates its file, once in the life of a disk.
    let locks = disk.path().join("v1/lock");
    fs::create_dir_all(&locks).expect("there is room");
    for number in 0..1024 {
        fs::write(locks.join(format!("build-{number:03x}")), "").expect("there is room");
    }
    let cache = CacheConfig::at(disk.path()).remote(url);
    // Only hits are measured: the budget keeps compiles from racing them.
    let rt = runtime(&Simulator::immediate(), cache.remote_budget(Duration::from_secs(60)));
    let get = Mutex::new(get);
    let get = |object: &String| (get.lock().expect("no call has failed"))(object);
    let (requests, received) = mpsc::channel::<(&String, oneshot::Sender<Vec<u8>>)>();
    let [mut hits, mut gets, mut awaited, mut loads] = [(); 4].map(|()| Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for (object, answer) in received {
                answer.send(get(object)).expect("it is awaited");
            }
        });
        for (number, object) in objects.iter().enumerate() {
            let start = Instant::now();
            let found = get(object);
            gets.push(start.elapsed());
            let module = module(number, bytes);
            let start = Instant::now();
            let program = block_on(rt.build(&module).into_future()).expect("it builds");
            hits.push(start.elapsed());
            assert_eq!(program.origin(), Origin::Remote);
            // The disk is filled in the background, but not during the next measurement.
            block_on(rt.drain());
            let start = Instant::now();
            let (answer, answered) = oneshot::channel();
            requests.send((object, answer)).expect("the thread is there");
            let again = block_on(answered).expect("it answers");
            awaited.push(start.elapsed());
            assert_eq!(again, found);
            let binary = program.binary().expect("it has one");
            let native = Module::native(binary).expect("it is not empty");
            let start = Instant::now();
            block_on(rt.build(&native).into_future()).expect("it loads");
            loads.push(start.elapsed());
            assert!(found.len() >= bytes);
        }
        drop(requests);
    });
    let [hit, get, awaited, load] = [hits, gets, awaited, loads].map(median);
    let over = |get: Duration| hit.as_secs_f64() / (get + load).as_secs_f64();
    println!(
        "a hit of {name}, over a plain client's GET and the load of its binary: {:.2} (goal: 1.15), \
         with that GET awaited from a thread {:.2}; {hit:.1?}, {get:.1?} or {awaited:.1?}, {load:.1?}",
        over(get),
        over(awaited)
    );
}

/// Measures the time until programs that no cache has are built, with remote caches that do not help.
fn cold_starts(redis: &Redis) {
    let proxy = Proxy::to(redis.address());
    let url = proxy.redis_url();
    let none = || CacheConfig::memory_only();
    let modes = [
        ("has nothing", Mode::Passes),
        ("answers after 20 ms", Mode::Slow(Duration::from_millis(20))),
        ("answers after 500 ms", Mode::Slow(Duration::from_millis(500))),
        ("hangs", Mode::Hangs),
        ("is down", Mode::Cuts),
    ];
    for (is_concurrent, how) in [(true, "together"), (false, "one by one")] {
        let (mut without, mut with) = (Vec::new(), modes.map(|_| Vec::new()));
        for _ in 0..STARTS {
            without.push(cold_start(none(), is_concurrent));
            for ((_, mode), times) in modes.iter().zip(&mut with) {
                redis.send(&[b"FLUSHALL"]);
                proxy.set(*mode);
                times.push(cold_start(none().remote(&url), is_concurrent));
                proxy.set(Mode::Passes);
            }
        }
        let without = median(without);
        for ((name, _), times) in modes.iter().zip(with) {
            let with = median(times);
            println!(
                "{PROGRAMS} programs of {COMPILE:?}, {how}, with a remote cache that {name}, over \
                 none: {:.3} (goal: 1.05)",
                with.as_secs_f64() / without.as_secs_f64()
            );
        }
    }
}

fn cold_start(cache: CacheConfig, is_concurrent: bool) -> Duration {
    let simulator = Simulator::immediate();
    simulator.delay_compiles(COMPILE);
    let rt = runtime(&simulator, cache);
    let start = Instant::now();
    block_on(async {
        let builds = (0..PROGRAMS).map(|number| rt.build(&module(number, 1)));
        if is_concurrent {
            let builds: Vec<_> = builds.map(|build| build.start()).collect();
            join_all(builds).await.into_iter().for_each(|built| drop(built.expect("it builds")));
        } else {
            for build in builds {
                build.await.expect("it builds");
            }
        }
    });
    start.elapsed()
}

/// Returns the paths of all objects. Assumes that they fit in one answer.
fn paths(s3: &S3) -> Vec<String> {
    let listed = s3.request("GET", &format!("/{}?list-type=2", S3::BUCKET), b"");
    let keys = listed.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
    keys.map(|(key, _)| format!("/{}/{key}", S3::BUCKET)).collect()
}

/// Returns the object at a path. This is the baseline for measurements of Kiln. Each call opens a
/// connection, because moto serves one connection at a time and closes it after the first answer.
fn get(s3: &S3, path: &str) -> Vec<u8> {
    let mut connection = TcpStream::connect(s3.address()).expect("it listens");
    connection.set_nodelay(true).expect("it is a socket");
    let head = s3.head("GET", path, "");
    connection.write_all(head.as_bytes()).expect("it listens");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte).expect("it answers");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("it is text").to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or_else(|| panic!("no content length: {head}"))];
    connection.read_exact(&mut body).expect("it answers");
    body
}
