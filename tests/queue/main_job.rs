//! The main job, from source text to results, on every device under every executor.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::channel::oneshot;
use futures::executor::block_on;
use futures::poll;
use kiln::build::Origin;
use kiln::commands::Status;
use kiln::devices::DeviceKind;
use kiln::{ErrorKind, Module};
use support::children::{Child, DEVICE, report, variable};
use support::everywhere;
use support::test_name;
use support::{SAXPY, kernel};

everywhere! {
    async fn a_kernel_runs_and_its_results_are_read(rt: Runtime) {
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        let x = rt.buffer_from((0..1000).map(|i| i as f32).collect::<Vec<_>>()).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 1000]).await.unwrap();
        let queue = rt.queue();
        let event = queue.submit(saxpy.launch(1000).args((2.0f32, &x, &y))).unwrap();
        let read = queue.read(&y).await.unwrap();
        let expected: Vec<f32> = (0..1000).map(|i| 1.0 + 2.0 * i as f32).collect();
        assert_eq!(read, expected);
        event.await.unwrap();
    }
}

everywhere! {
    async fn fills_writes_copies_and_reads_give_the_expected_elements(rt: Runtime) {
        let queue = rt.queue();
        let a = rt.buffer::<u32>(64).unwrap();
        let b = rt.buffer::<u32>(64).unwrap();
        queue.fill(&a, 7).unwrap().await.unwrap();
        queue.write(&a.slice(8..16).unwrap(), vec![9; 8]).unwrap();
        queue.copy(&a, &b).unwrap();
        queue.fill(&b.slice(60..).unwrap(), 1).unwrap();
        let marker = queue.marker().unwrap();
        let read = queue.read(&b).await.unwrap();
        marker.await.unwrap();
        for (index, value) in read.into_iter().enumerate() {
            let expected = match index {
                8..16 => 9,
                60.. => 1,
                _ => 7,
            };
            assert_eq!(value, expected, "at {index}");
        }
        let odd = rt.buffer::<[u8; 3]>(5).unwrap();
        queue.fill(&odd, [1, 2, 3]).unwrap();
        assert_eq!(queue.read(&odd).await.unwrap(), vec![[1, 2, 3]; 5]);
    }
}

everywhere! {
    async fn a_build_request_returns_the_key_of_its_program(rt: Runtime) {
        let request = rt.build(&Module::opencl_c(SAXPY));
        let (sender, receiver) = oneshot::channel();
        let key_request = request.clone();
        // On the library's own thread, which may be needed to compute the key.
        let task = async move { sender.send(key_request.key()).expect("the test waits") };
        rt.queue().host_task(task).unwrap().await.unwrap();
        let program = request.await.unwrap();
        assert_eq!(receiver.await.unwrap().unwrap(), program.key());
    }
}

everywhere! {
    async fn a_program_is_compiled_once_and_then_found_in_memory(rt: Runtime) {
        let module = Module::opencl_c(SAXPY);
        let first = rt.build(&module).await.unwrap();
        let second = rt.build(&Module::opencl_c(SAXPY)).await.unwrap();
        assert_eq!((first.origin(), second.origin()), (Origin::Compiled, Origin::Memory));
        assert_eq!(first.key(), second.key());
        assert_eq!(rt.stats().builds.compiles, 1);
        assert_eq!(first.kernel_names(), ["saxpy"]);
    }
}

everywhere! {
    async fn a_binary_runs_without_its_source(rt: Runtime) {
        let compiled = support::program(&rt, SAXPY).await;
        let module = Module::native(compiled.binary().unwrap()).unwrap();
        let loaded = rt.build(&module).await.unwrap();
        // SAFETY: as in `support::kernel`.
        let saxpy = unsafe { loaded.kernel("saxpy") }.unwrap();
        let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        rt.queue().submit(saxpy.launch(8).args((4.0f32, &x, &y))).unwrap();
        assert_eq!(rt.queue().read(&y).await.unwrap(), [5.0; 8]);
    }
}

everywhere! {
    async fn launches_can_be_submitted_while_their_program_builds(rt: Runtime) {
        let source = format!("{SAXPY} // another program than in other tests\n");
        let build = rt.build(&Module::opencl_c(source)).start();
        // SAFETY: as in `support::kernel`.
        let saxpy = unsafe { build.kernel("saxpy") };
        // SAFETY: as in `support::kernel`.
        let absent = unsafe { build.kernel("sapxy") };
        let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let z = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let queue = rt.queue();
        let event = queue.submit(saxpy.launch(8).args((1.0f32, &x, &y))).unwrap();
        let error = match queue.submit(absent.launch(8).args((1.0f32, &x, &z))) {
            Ok(event) => event.await.expect_err("there is no such kernel"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::UnknownKernel);
        assert!(error.to_string().contains("saxpy"), "{error}");
        event.await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [2.0; 8]);
    }
}

everywhere! {
    async fn commands_wait_for_host_futures(rt: Runtime) {
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let queue = rt.queue();
        let (open, gate) = async_channel::bounded::<()>(1);
        let launch = saxpy.launch(8).args((1.0f32, &x, &y)).after_future(async move { gate.recv().await });
        let event = queue.submit(launch).unwrap();
        let other = queue.submit(saxpy.launch(8).args((1.0f32, &y, &x))).unwrap();
        let independent = rt.buffer_from(vec![3u8; 4]).await.unwrap();
        assert_eq!(queue.read(&independent).await.unwrap(), [3; 4]);
        assert!(matches!(event.status(), Status::Waiting));
        open.send(()).await.unwrap();
        other.await.unwrap();
        assert!(matches!(event.status(), Status::Complete));
        assert_eq!(queue.read(&x).await.unwrap(), [3.0; 8]);
    }
}

everywhere! {
    async fn spirv_runs_on_devices_with_and_without_spirv_support(rt: Runtime) {
        let module = Module::spirv(include_bytes!("../data/saxpy.spv").to_vec()).unwrap();
        assert_eq!(module.kernels(), ["saxpy"]);
        // SAFETY: as in `support::kernel`.
        let saxpy = unsafe { rt.build(&module).await.unwrap().kernel("saxpy") }.unwrap();
        let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        rt.queue().submit(saxpy.launch(8).args((1.0f32, &x, &y))).unwrap();
        assert_eq!(rt.queue().read(&y).await.unwrap(), [2.0; 8]);
    }
}

everywhere! {
    async fn a_kernel_that_casts_const_away_is_ordered_by_its_declared_access(rt: Runtime) {
        const LEN: usize = 1 << 14;
        // The kernel is slow, so that a read that does not wait for it comes too early.
        const SOURCE: &str = "kernel void sneaks(global const uint *x) {
            uint value = x[get_global_id(0)];
            for (uint i = 0; i < 20000; i++) value = value * 1664525u + 1013904223u;
            ((global uint *)x)[get_global_id(0)] = value;
        }";
        let sneaks = kernel(&rt, SOURCE, "sneaks").await;
        let (queue, x) = (rt.queue(), rt.buffer::<u32>(LEN).unwrap());
        let step = |value: u32| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut expected = 0;
        for _ in 0..3 {
            queue.submit(sneaks.launch(LEN).args((x.read_write(),))).unwrap();
            expected = (0..20_000).fold(expected, |value, _| step(value));
            assert_eq!(queue.read(&x).await.unwrap(), [expected; LEN]);
        }
    }
}

everywhere! {
    async fn aligned_slices_can_be_kernel_arguments(rt: Runtime) {
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        let aligned = rt.device().limits.slice_alignment / size_of::<f32>();
        let x = rt.buffer_from(vec![1.0f32; 2 * aligned]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 2 * aligned]).await.unwrap();
        let queue = rt.queue();
        let (low, high) = (y.slice(..aligned).unwrap(), y.slice(aligned..).unwrap());
        queue.submit(saxpy.launch(aligned).args((1.0f32, &x, &low))).unwrap();
        queue.submit(saxpy.launch(aligned).args((2.0f32, &x, &high))).unwrap();
        let read = queue.read(&y).await.unwrap();
        assert_eq!(read[..aligned], vec![2.0; aligned]);
        assert_eq!(read[aligned..], vec![3.0; aligned]);
    }
}

everywhere! {
    async fn dot_draws_the_dag_and_traces_record_the_commands(rt: Runtime) {
        let path = std::env::temp_dir().join(format!("kiln-trace-{}.json", std::process::id()));
        let trace = rt.trace_to(&path);
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let y = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
        let queue = rt.queue();
        queue.submit(saxpy.launch(8).args((1.0f32, &x, &y))).unwrap();
        queue.read(&y).await.unwrap();
        rt.drain().await;
        let dot = queue.dot();
        assert!(dot.contains("saxpy") && dot.contains("->"), "{dot}");
        let later = rt.trace_to(&path);
        queue.fill(&y, 1.0).unwrap().await.unwrap();
        later.finish().await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("fill") && !text.contains("saxpy"), "from now on: {text}");
        trace.finish().await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names: Vec<_> = json["traceEvents"].as_array().unwrap().iter().map(|event| event["name"].as_str().unwrap()).collect();
        for name in ["process_name", "thread_name", "write", "saxpy", "read"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert_eq!(json["otherData"]["commands left out"], 0);
    }
}

everywhere! {
    async fn commands_of_a_trace_do_not_overlap_in_a_thread(rt: Runtime) {
        let path = std::env::temp_dir().join(format!("kiln-tracks-{}.json", std::process::id()));
        let trace = rt.trace_to(&path);
        let (open, gate) = async_channel::bounded::<()>(1);
        for _ in 0..4 {
            let gate = gate.clone();
            rt.queue().host_task(async move { _ = gate.recv().await }).unwrap();
            let buffer = rt.buffer::<u64>(1 << 12).unwrap();
            rt.queue().fill(&buffer, 1).unwrap();
        }
        open.close();
        rt.drain().await;
        trace.finish().await.unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let spans = events.iter().filter(|event| event["ph"] == "X").map(|event| {
            let [tid, start, took] =
                ["tid", "ts", "dur"].map(|name| event[name].as_f64().unwrap());
            (tid, start, start + took)
        });
        let mut spans: Vec<_> = spans.collect();
        assert!(spans.len() >= 8, "{spans:?}");
        spans.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for pair in spans.windows(2) {
            let [(tid, _, end), (next_tid, next, _)] = pair else { unreachable!() };
            // The sum is rounded.
            assert!(tid != next_tid || *next >= *end - 0.001, "{pair:?}");
        }
        let names = events.iter().filter(|event| event["name"] == "thread_name");
        let mut names: Vec<_> = names.map(|event| event["args"]["name"].to_string()).collect();
        assert!(!names.iter().any(|name| name.contains("native queue") && name.contains('(')), "{names:?}");
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "each has a name of its own: {names:?}");
    }
}

everywhere! {
    async fn profile_timestamps_are_in_order(rt: Runtime) {
        let rt = support::builder().device(rt.device().index().to_string()).profiling(true).build().await.unwrap();
        let buffer = rt.buffer::<u64>(1 << 16).unwrap();
        let event = rt.queue().fill(&buffer, 1).unwrap();
        event.clone().await.unwrap();
        let profile = event.profile().expect("it has ended");
        assert!(profile.queued <= profile.submitted);
        assert!(profile.submitted <= profile.started);
        assert!(profile.started <= profile.ended);
    }
}

#[test]
fn drain_waits_for_all_commands() {
    block_on(support::on_each_device(async |rt| {
        let buffers: Vec<_> = (0..16).map(|_| rt.buffer::<u64>(1 << 16).unwrap()).collect();
        let events: Vec<_> =
            buffers.iter().map(|buffer| rt.queue().fill(buffer, 1).unwrap()).collect();
        rt.drain().await;
        assert!(events.iter().all(|event| matches!(event.status(), Status::Complete)));
        assert_eq!(rt.stats().commands.in_flight, 0);
    }));
}

/// Work-groups that wait for each other. All of them meet on a device with a compute unit for each.
const MEET: &str = "
    kernel void meet(uint groups, volatile global uint *arrived, global uint *met) {
        size_t group = get_group_id(0);
        met[group] = 0;
        atomic_inc(arrived);
        for (uint left = 1u << 27; left > 0 && !met[group]; --left)
            met[group] = atomic_or(arrived, 0) == groups;
    }
";

everywhere! {
    async fn an_awaited_command_uses_all_compute_units(rt: Runtime) {
        if rt.device().kind != DeviceKind::Cpu {
            return;
        }
        let units = rt.device().limits.compute_units;
        let meet = kernel(&rt, MEET, "meet").await;
        let (arrived, met) = (rt.buffer(1).unwrap(), rt.buffer::<u32>(units).unwrap());
        let queue = rt.queue();
        queue.fill(&arrived, 0u32).unwrap();
        let launch = meet.launch(units).local(1).args((units as u32, &arrived, &met));
        queue.submit(launch).unwrap().await.unwrap();
        assert_eq!(queue.read(&met).await.unwrap(), vec![1; units]);
    }
}

/// One work-item that works for at least half a second.
const LONG: &str = "kernel void work(global uint *x) {
    uint value = x[0];
    for (uint left = 1u << 28; left > 0; --left)
        value ^= value * 1664525u + left;
    x[0] = value;
}";

/// Environment variable with the text that distinguishes a child's program.
const TEXT: &str = "KILN_TEST_TEXT";

#[test]
fn a_process_can_end_while_a_command_is_awaited() {
    block_on(support::on_each_device(async |rt| {
        for _ in 0..2 {
            // No driver has such a program on disk. PoCL compiles it again at its first launch, and then stores
            // it: the first process ends meanwhile, the second while the kernel runs.
            let text = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
            for _ in 0..2 {
                let variables = [
                    (DEVICE, rt.device().index().to_string()),
                    (TEXT, text.to_string()),
                    // glibc overwrites freed memory, so that its use fails each time.
                    ("MALLOC_PERTURB_", "165".to_owned()),
                    ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0".to_owned()),
                ];
                Child::start(&test_name!("exits_while_a_command_is_awaited"), variables).report();
            }
        }
    }));
}

#[test]
#[ignore = "another test runs it"]
fn exits_while_a_command_is_awaited() {
    block_on(async {
        let rt = support::builder().device(variable(DEVICE)).build().await.unwrap();
        let work =
            kernel(&rt, &format!("{LONG} constant ulong text = {};", variable(TEXT)), "work").await;
        let x = rt.buffer_from(vec![1u32; 16]).await.unwrap();
        let mut event = rt.queue().submit(work.launch(1).args((&x,))).unwrap();
        assert!(poll!(&mut event).is_pending());
        thread::sleep(Duration::from_millis(2));
        std::mem::forget((rt, x, event));
        report("submitted", 1);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn dropped_buffers_release_their_memory() {
    block_on(support::on_each_device(async |rt| {
        let report = Child::start_on(rt.device(), &test_name!("fills_buffers_one_by_one")).report();
        assert!(report["kept"] < 6, "memory of {} buffers", report["kept"]);
    }));
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "another test runs it"]
fn fills_buffers_one_by_one() {
    const BYTES: usize = 64 << 20;
    /// Returns the peak of the memory of this process, in bytes.
    fn peak() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }
    block_on(async {
        let rt = support::builder().device(variable(DEVICE)).build().await.unwrap();
        let queue = rt.queue();
        let fill = async || {
            let x = rt.buffer::<u8>(BYTES).unwrap();
            queue.fill(&x, 1).unwrap().await.unwrap();
        };
        fill().await;
        let first = peak();
        for _ in 0..12 {
            fill().await;
        }
        // The system counts pages per processor, so a later peak can be some pages lower.
        report("kept", (peak().saturating_sub(first) / BYTES) as u64);
    });
}
