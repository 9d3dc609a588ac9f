//! Copies between devices: the bytes arrive, both DAGs order the copy, and failures and drops of either side
//! reach the other one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use futures::channel::oneshot;
use futures::executor::block_on;
use kiln::commands::Status;
use kiln::images::{R, Rgba};
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, ErrorKind, Event, Runtime};
use support::forgotten;
use support::simulation::{KERNELS, assert_at_rest, kernel, runtime, runtime_with, with_kernels};

const LEN: usize = 1000;

/// Number of elements that are copied in several pieces, of which the last one is short.
const LARGE: usize = (5 << 20) + 3;

/// Runs `test` with two simulated devices, with a simulated and each real one, and with each two real ones.
fn with_pairs(test: impl AsyncFn(Runtime, Runtime)) {
    block_on(async {
        let simulated = || with_kernels(Simulator::new());
        let immediate = with_kernels(Simulator::immediate());
        test(runtime(&simulated()).await, runtime(&immediate).await).await;
        support::on_each_device(async |one| {
            test(one, runtime(&simulated()).await).await;
        })
        .await;
        support::on_each_device(async |one| {
            support::on_each_device(async |other| {
                // The runtimes are different even if the device is the same.
                let selector = one.device().index().to_string();
                let one = support::builder().device(selector).build().await.unwrap();
                test(one, other).await;
            })
            .await;
        })
        .await;
    });
}

/// Two simulated devices with a runtime each.
async fn simulated_pair() -> ([Simulator; 2], [Runtime; 2]) {
    let simulators = [(); 2].map(|()| with_kernels(Simulator::new()));
    let runtimes = [runtime(&simulators[0]).await, runtime(&simulators[1]).await];
    (simulators, runtimes)
}

#[test]
fn elements_arrive_on_the_other_device() {
    with_pairs(async |one, two| {
        for len in [1, LEN, LARGE] {
            let elements: Arc<[u32]> = (0..len as u32).map(|at| at ^ 0x5a5a).collect();
            let from = one.buffer_from(elements.clone()).await.unwrap();
            let to = two.buffer::<u32>(len).unwrap();
            one.queue().copy(&from, &to).unwrap().await.unwrap();
            assert!(two.queue().read(&to).await.unwrap() == *elements);
            // Back, as a command of the target's queue.
            let back = one.buffer::<u32>(len).unwrap();
            one.queue().copy(&to, &back).unwrap();
            assert!(one.queue().read(&back).await.unwrap() == *elements);
        }
    });
}

#[test]
fn slices_are_copied_and_the_other_elements_stay() {
    with_pairs(async |one, two| {
        let from = one.buffer_from((0..LEN as u32).collect::<Vec<_>>()).await.unwrap();
        let to = two.buffer::<u32>(LEN).unwrap();
        let copied = one.queue().copy(&from.slice(3..10).unwrap(), &to.slice(501..508).unwrap());
        copied.unwrap().await.unwrap();
        let mut expected = vec![0; LEN];
        expected[501..508].copy_from_slice(&[3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(two.queue().read(&to).await.unwrap(), expected);
        // New buffers hold zeros, on either side.
        two.queue().copy(&one.buffer::<u32>(LEN).unwrap(), &to).unwrap();
        assert_eq!(two.queue().read(&to).await.unwrap(), [0; LEN]);
    });
}

#[test]
fn rows_of_grids_are_copied_and_the_elements_between_them_stay() {
    with_pairs(async |one, two| {
        // The second one is copied in groups of rows, and the third one in parts of rows.
        for ([width, height], [left, top], [columns, rows]) in [
            ([9, 7], [2, 1], [4, 5]),
            ([30_000, 100], [3, 1], [29_990, 99]),
            ([2_200_000, 2], [3, 0], [2_199_000, 2]),
        ] {
            let len = width * height;
            let elements: Vec<u32> = (0..len as u32).collect();
            let from = one.buffer_from(elements.clone()).await.unwrap();
            let to = two.buffer_from(vec![7u32; len]).await.unwrap();
            let packed = two.buffer::<u32>(columns * rows).unwrap();
            let part = |buffer: &Buffer<u32>| {
                buffer.grid([width, height]).unwrap().part([left, top], [columns, rows]).unwrap()
            };
            one.queue().copy(&part(&from), &part(&to)).unwrap();
            one.queue().copy(&part(&from), &packed).unwrap();
            let is_inside = |at: usize| {
                (left..left + columns).contains(&(at % width))
                    && (top..top + rows).contains(&(at / width))
            };
            let kept = |at: u32| if is_inside(at as usize) { at } else { 7 };
            let expected: Vec<u32> = elements.iter().map(|at| kept(*at)).collect();
            assert!(two.queue().read(&to).await.unwrap() == expected);
            let expected: Vec<u32> =
                elements.into_iter().filter(|at| is_inside(*at as usize)).collect();
            assert!(two.queue().read(&packed).await.unwrap() == expected);
            // Back, from elements that follow each other to rows.
            let back = one.buffer::<u32>(len).unwrap();
            two.queue().copy(&packed, &part(&back)).unwrap();
            assert!(one.queue().read(&part(&back)).await.unwrap() == expected);
        }
    });
}

#[test]
fn images_are_copied_and_pixels_outside_of_parts_stay() {
    with_pairs(async |one, two| {
        if [&one, &two].iter().any(|rt| rt.device().limits.images.d3 == [0; 3]) {
            return;
        }
        for [width, height, depth] in [[9, 7, 5], [300, 200, 19]] {
            let len = (width * height * depth) as u32;
            let color = |at: u32| Rgba([at, !at, 3, at / 5]);
            let pixels: Vec<_> = (0..len).map(color).collect();
            let from = one.image_3d::<Rgba<u32>>(width, height, depth).unwrap();
            let to = two.image_3d::<Rgba<u32>>(width, height, depth).unwrap();
            one.queue().write(&from, pixels.clone()).unwrap();
            one.queue().copy(&from, &to).unwrap();
            assert!(two.queue().read(&to).await.unwrap() == pixels);
            // A part of it, and the same part from a buffer.
            two.queue().fill(&to, Rgba([1; 4])).unwrap();
            let (origin, size) = ([1, 2, 3], [width - 2, height - 3, depth - 4]);
            let part = from.part(origin, size).unwrap();
            let packed = two.buffer::<Rgba<u32>>(size.iter().product()).unwrap();
            one.queue().copy(&part, &to.part(origin, size).unwrap()).unwrap();
            one.queue().copy(&part, &packed).unwrap();
            let is_inside = |at: u32| {
                let at = at as usize;
                let pixel = [at % width, at / width % height, at / width / height];
                (0..3).all(|i| (origin[i]..origin[i] + size[i]).contains(&pixel[i]))
            };
            let kept = |at| if is_inside(at) { color(at) } else { Rgba([1; 4]) };
            assert!(two.queue().read(&to).await.unwrap() == (0..len).map(kept).collect::<Vec<_>>());
            let expected: Vec<_> = (0..len).filter(|at| is_inside(*at)).map(color).collect();
            assert!(two.queue().read(&packed).await.unwrap() == expected);
            one.queue().fill(&from, Rgba([0; 4])).unwrap();
            two.queue().copy(&packed, &part).unwrap();
            assert!(one.queue().read(&part).await.unwrap() == expected);
        }
    });
}

#[test]
fn inputs_and_temporaries_of_graphs_are_refused_and_nothing_is_lost() {
    with_pairs(async |one, two| {
        let mut recorder = one.queue().record();
        let input = recorder.input::<u32>(LEN).unwrap();
        let temporary = recorder.temporary::<u32>(LEN).unwrap();
        let buffer = two.buffer_from(vec![7u32; LEN]).await.unwrap();
        for queue in [one.queue(), two.queue()] {
            for placeholder in [&input, &temporary] {
                for refused in [queue.copy(placeholder, &buffer), queue.copy(&buffer, placeholder)]
                {
                    let error = refused.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                    assert!(
                        error.to_string().contains("an input or a temporary of a graph"),
                        "{error}"
                    );
                }
            }
        }
        assert_eq!(two.queue().read(&buffer).await.unwrap(), [7; LEN]);
    });
}

#[test]
fn both_devices_order_the_copy() {
    with_pairs(async |one, two| {
        let scale = [&one, &two].map(async |rt| support::kernel(rt, KERNELS, "scale").await);
        let [scale_one, scale_two] = scale;
        let (scale_one, scale_two) = (scale_one.await, scale_two.await);
        let (queue_one, queue_two) = (one.queue(), two.queue());
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        for round in 1..20u32 {
            queue_one.fill(&x, round).unwrap();
            queue_one.submit(scale_one.launch(LEN).args((2u32, &x))).unwrap();
            queue_two.fill(&y, 7).unwrap();
            let before = queue_two.read(&y);
            let copied = queue_one.copy(&x, &y).unwrap();
            queue_one.fill(&x, 0).unwrap(); // after the copy has read it
            queue_two.submit(scale_two.launch(LEN).args((3u32, &y))).unwrap();
            assert_eq!(queue_two.read(&y).await.unwrap(), [6 * round; LEN]);
            assert_eq!(before.await.unwrap(), [7; LEN]);
            assert_eq!(queue_one.read(&x).await.unwrap(), [0; LEN]);
            copied.await.unwrap();
        }
    });
}

#[test]
fn copies_in_opposite_directions_do_not_wait_for_each_other() {
    block_on(async {
        let (simulators, [one, two]) = simulated_pair().await;
        let x = one.buffer_from(vec![1u32; LEN]).await.unwrap();
        let y = two.buffer_from(vec![1u32; LEN]).await.unwrap();
        thread::scope(|scope| {
            for (rt, from, to) in [(&one, &x, &y), (&two, &y, &x), (&two, &x, &y)] {
                scope.spawn(move || {
                    let queue = rt.queue();
                    for _ in 0..300 {
                        let _ = queue.copy(from, to).unwrap();
                    }
                    block_on(rt.drain());
                });
            }
        });
        assert_eq!(one.queue().read(&x).await.unwrap(), [1; LEN]);
        drop((one, two, x, y));
        simulators.iter().for_each(assert_at_rest);
    });
}

#[test]
fn a_device_that_runs_one_command_at_a_time_copies() {
    block_on(async {
        let bounded = || Runtime::builder().max_in_flight(NonZeroUsize::MIN);
        let one = runtime_with(&Simulator::new(), bounded()).await;
        let two = runtime_with(&Simulator::new(), bounded()).await;
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        for round in 0..50 {
            one.queue().fill(&x, round).unwrap();
            one.queue().copy(&x, &y).unwrap();
            two.queue().copy(&y, &x).unwrap();
        }
        assert_eq!(one.queue().read(&x).await.unwrap(), [49; LEN]);
    });
}

#[test]
fn a_failure_before_the_copy_reaches_the_target() {
    block_on(async {
        let (simulators, [one, two]) = simulated_pair().await;
        let scale = kernel(&one, "scale").await;
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        simulators[0].fail_launches("scale", 1, Fault::Refused);
        let failed = one.queue().submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let copied = two.queue().copy(&x, &y).unwrap();
        let read = two.queue().read(&y);
        let root = failed.await.unwrap_err();
        let error = copied.await.unwrap_err();
        assert!(error.same(&root) && error.to_string().contains("other device"), "{error}");
        assert!(read.await.unwrap_err().same(&root));
        // Both buffers are usable again once they are overwritten.
        one.queue().fill(&x, 4).unwrap();
        two.queue().copy(&x, &y).unwrap();
        assert_eq!(two.queue().read(&y).await.unwrap(), [4; LEN]);
        drop((one, two, x, y, scale));
        simulators.iter().for_each(assert_at_rest);
    });
}

#[test]
fn a_transfer_that_either_driver_refuses_fails_the_copy_and_nothing_else() {
    for side in [0, 1] {
        block_on(async {
            let (simulators, [one, two]) = simulated_pair().await;
            let x = one.buffer_from(vec![3u32; LARGE]).await.unwrap();
            let y = two.buffer_from(vec![5u32; LARGE]).await.unwrap();
            // The first device may also refuse to map memory; the copy uses other memory then.
            simulators[side].fail_enqueues(2 - side, Fault::Refused);
            let error = one.queue().copy(&x, &y).unwrap().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Driver);
            assert!(error.to_string().contains("a copy between devices"), "{error}");
            assert!(two.queue().read(&y).await.unwrap_err().same(&error));
            assert!(one.queue().read(&x).await.unwrap() == vec![3; LARGE]);
            one.queue().copy(&x, &y).unwrap();
            assert!(two.queue().read(&y).await.unwrap() == vec![3; LARGE]);
            drop((one, two, x, y));
            simulators.iter().for_each(assert_at_rest);
        });
    }
}

#[test]
fn a_copy_needs_no_memory_of_a_driver() {
    block_on(async {
        let (simulators, [one, two]) = simulated_pair().await;
        let x = one.buffer_from(vec![3u32; LARGE]).await.unwrap();
        let y = two.buffer::<u32>(LARGE).unwrap();
        for round in 0..3 {
            one.queue().fill(&x, round).unwrap().await.unwrap();
            two.drain().await;
            simulators
                .iter()
                .for_each(|simulator| simulator.fail_enqueues(1, Fault::OutOfResources));
            one.queue().copy(&x, &y).unwrap().await.unwrap();
            assert!(two.queue().read(&y).await.unwrap() == vec![round; LARGE]);
        }
        drop((one, two, x, y));
        simulators.iter().for_each(assert_at_rest);
    });
}

#[test]
fn a_copy_that_waits_can_be_canceled_from_either_side() {
    for side in [0, 1] {
        block_on(async {
            let (simulators, runtimes) = simulated_pair().await;
            let [one, two] = &runtimes;
            let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
            let pauses = simulators.each_ref().map(Simulator::pause);
            one.queue().fill(&x, 1).unwrap();
            two.queue().fill(&y, 2).unwrap();
            let copied = runtimes[side].queue().copy(&x, &y).unwrap();
            assert!(matches!(copied.status(), Status::Waiting), "{copied:?}");
            assert!(copied.cancel());
            let read = two.queue().read(&y);
            drop(pauses);
            assert_eq!(copied.await.unwrap_err().kind(), ErrorKind::Canceled);
            assert_eq!(read.await.unwrap_err().kind(), ErrorKind::Canceled);
            assert_eq!(one.queue().read(&x).await.unwrap(), [1; LEN]);
            drop((runtimes, x, y));
            simulators.iter().for_each(assert_at_rest);
        });
    }
}

#[test]
fn a_copy_that_waits_only_for_the_other_device_can_be_canceled_from_either_side() {
    for (side, waits_for) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        block_on(async {
            let (simulators, runtimes) = simulated_pair().await;
            let [one, two] = &runtimes;
            let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
            one.queue().fill(&x, 1).unwrap().await.unwrap();
            two.queue().fill(&y, 2).unwrap().await.unwrap();
            let pause = simulators[waits_for].pause();
            match waits_for {
                0 => one.queue().fill(&x, 3).unwrap(),
                _ => two.queue().fill(&y, 3).unwrap(),
            };
            let copied = runtimes[side].queue().copy(&x, &y).unwrap();
            assert!(matches!(copied.status(), Status::Waiting), "{copied:?}");
            assert!(copied.cancel());
            assert!(!copied.cancel(), "it is canceled");
            let read = two.queue().read(&y);
            drop(pause);
            assert_eq!(copied.await.unwrap_err().kind(), ErrorKind::Canceled);
            assert_eq!(read.await.unwrap_err().kind(), ErrorKind::Canceled);
            assert_eq!(
                one.queue().read(&x).await.unwrap(),
                [if waits_for == 0 { 3 } else { 1 }; LEN]
            );
            // Both devices go on.
            one.queue().copy(&x, &y).unwrap().await.unwrap();
            two.queue().read(&y).await.unwrap();
            drop((runtimes, x, y));
            simulators.iter().for_each(assert_at_rest);
        });
    }
}

#[test]
fn a_task_that_awaits_a_copy_that_waits_for_the_task_gets_a_deadlock_error() {
    block_on(async {
        let (simulators, [one, two]) = simulated_pair().await;
        let scale = kernel(&two, "scale").await;
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        let (send, receive) = oneshot::channel::<Event>();
        let task = two.queue().host_task(async move { receive.await.unwrap().await }).unwrap();
        let launch = scale.launch(LEN).args((2u32, &y)).after(&task);
        let _ = two.queue().submit(launch).unwrap();
        // The first device has nothing to do before the copy.
        one.queue().fill(&x, 1).unwrap().await.unwrap();
        let copied = one.queue().copy(&x, &y).unwrap();
        send.send(copied.clone()).unwrap();
        assert_eq!(task.await.unwrap_err().kind(), ErrorKind::Deadlock);
        copied.await.unwrap(); // it overwrites what the launch should have written
        // A task may await a copy that does not wait for it.
        let copied = one.queue().copy(&y, &x).unwrap();
        let task = two.queue().host_task(copied).unwrap();
        task.await.unwrap();
        drop((one, two, x, y, scale));
        simulators.iter().for_each(assert_at_rest);
    });
}

#[test]
fn runtimes_queues_and_events_may_be_dropped_while_it_copies() {
    for round in 0..40 {
        let simulators = block_on(async {
            let (simulators, [one, two]) = simulated_pair().await;
            let (x, y) = (one.buffer::<u32>(LARGE).unwrap(), two.buffer::<u32>(LARGE).unwrap());
            let pause = simulators[round % 2].pause();
            let _ = one.queue().fill(&x, round as u32).unwrap();
            let copied = if round % 3 == 0 { &one } else { &two }.queue().copy(&x, &y).unwrap();
            let read = (round % 4 == 0).then(|| two.queue().read(&y));
            match round % 5 {
                0 => drop((one, two)),
                1 => drop((two, copied)),
                2 => drop((x, y, one)),
                3 => forgotten::forget(copied),
                _ => drop(x),
            }
            drop(pause);
            if let Some(read) = read {
                assert!(read.await.unwrap() == vec![round as u32; LARGE]);
            }
            simulators
        });
        simulators.iter().for_each(assert_at_rest);
    }
}

#[test]
fn copies_that_cannot_be_made_are_refused_by_name() {
    block_on(async {
        let (_, [one, two]) = simulated_pair().await;
        let (x, y) = (one.buffer::<u32>(64).unwrap(), two.buffer::<u32>(64).unwrap());
        let queue = one.queue();
        let part = y.grid([8, 8]).unwrap().part([1, 1], [4, 4]).unwrap();
        let image = two.image_2d::<R<u32>>(8, 8).unwrap();
        let columns = one.image_2d::<R<u32>>(4, 8).unwrap();
        let third = runtime(&Simulator::new()).await;
        let orphan = runtime(&Simulator::new()).await.buffer::<u32>(64).unwrap();
        let errors = [
            (queue.copy(&x, &part.clone()).err(), "64 elements to a buffer of 16"),
            (
                queue.copy(&part, &x.grid([16, 4]).unwrap().part([0, 0], [8, 2]).unwrap()).err(),
                "other sizes: [16, 4, 1] to [32, 2, 1] bytes, rows and slices",
            ),
            (
                queue.copy(&image.part([0, 0], [8, 4]).unwrap(), &columns).err(),
                "[8, 4, 1] pixels to [4, 8, 1] pixels",
            ),
            (third.queue().copy(&x, &y).err(), "this queue belongs to"),
            (queue.copy(&y, &y).err(), "this queue belongs to"),
            (queue.copy(&orphan, &x).err(), "whose runtime was dropped"),
        ];
        for (error, message) in errors {
            let error = error.unwrap_or_else(|| panic!("it was accepted; expected {message:?}"));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(message), "{message:?} is missing in: {error}");
        }
        for rt in [one, two, third] {
            rt.drain().await;
            assert_eq!(rt.stats().commands.failed, 0);
        }
    });
}

#[test]
fn drawings_of_both_devices_show_the_copy() {
    block_on(async {
        let (simulators, [one, two]) = simulated_pair().await;
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        let pause = simulators[0].pause();
        let _ = one.queue().fill(&x, 1).unwrap();
        let _ = one.queue().copy(&x, &y).unwrap();
        let (source, target) = (one.queue().dot(), two.queue().dot());
        assert!(source.contains("label=\"copy to ") && source.contains(" -> "), "{source}");
        assert!(target.contains("label=\"copy from "), "{target}");
        drop(pause);
        one.drain().await;
    });
}

#[test]
fn one_drawing_has_all_devices_and_joins_both_commands_of_a_copy() {
    block_on(async {
        let simulators = ["source", "target"].map(|name| Simulator::new().named(name));
        let [source, target] = &simulators;
        let builder = Runtime::builder().simulator(source).simulator(target);
        let one = builder.device("0").build().await.unwrap();
        let two = one.on(&one.devices()[1]).await.unwrap();
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        let pause = source.pause();
        let _ = one.queue().fill(&x, 1).unwrap();
        let _ = one.queue().copy(&x, &y).unwrap();
        let _ = two.queue().fill(&y, 2).unwrap();
        for text in [one.dot(), two.dot()] {
            let (frame_one, rest) = text.split_once("cluster_d1").unwrap();
            assert!(frame_one.contains("cluster_d0 {") && frame_one.contains("source"), "{text}");
            assert!(frame_one.contains("copy to ") && rest.contains("copy from "), "{text}");
            let node_of = |label: &str| {
                let line = text.lines().find(|line| line.contains(label)).unwrap();
                line.trim_start().split_once(' ').unwrap().0.to_owned()
            };
            let joined = format!("{} -> {} [", node_of("copy to "), node_of("copy from "));
            assert_eq!(text.matches(&joined).count(), 1, "{text}");
            let ordered = format!("{} -> d1c", node_of("copy from "));
            assert!(rest.contains(&ordered), "the copy is before the fill: {text}");
        }
        drop(pause);
        one.drain().await;
    });
}

#[test]
fn a_trace_of_all_devices_has_both_commands_of_a_copy() {
    block_on(async {
        let simulators = ["source", "target"].map(|name| Simulator::immediate().named(name));
        let [source, target] = &simulators;
        let builder = Runtime::builder().simulator(source).simulator(target);
        let one = builder.device("0").build().await.unwrap();
        let two = one.on(&one.devices()[1]).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let trace = one.trace_to(&path);
        let (x, y) = (one.buffer::<u32>(LEN).unwrap(), two.buffer::<u32>(LEN).unwrap());
        one.queue().copy(&x, &y).unwrap().await.unwrap();
        one.drain().await;
        trace.finish().await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let device_of = |start: &str| {
            let name = |event: &serde_json::Value| event["name"].as_str().unwrap().to_owned();
            let mut found = events.iter().filter(|event| name(event).starts_with(start));
            let event = found.next().unwrap_or_else(|| panic!("{start} is missing in: {text}"));
            assert_eq!(event["ph"], "X", "{event}");
            event["pid"].clone()
        };
        assert_ne!(device_of("copy to "), device_of("copy from "));
    });
}
