//! Statistics of devices, and their serialized form.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use futures::executor::block_on;
use kiln::images::{Rgba, Unorm};
use kiln::simulated::Simulator;
use kiln::stats::DeviceStats;
use kiln::{Buffer, Runtime};
use serde_json::{Value, json};
use support::everywhere;
use support::simulation::eventually;

const ELEMENTS: usize = 1000;

/// Returns the memory in use on the only open device.
fn used(rt: &Runtime) -> u64 {
    let [device] = &*rt.device_stats() else { panic!("{:?}", rt.device_stats()) };
    device.memory_used
}

everywhere! {
    async fn memory_counts_from_its_allocation_until_it_is_freed(rt: Runtime) {
        let [device] = &*rt.device_stats() else { panic!("{:?}", rt.device_stats()) };
        let DeviceStats { index, name, backend, memory_total, .. } = device;
        assert_eq!((*index, name, *backend), (rt.device().index(), &rt.device().name, rt.device().backend));
        assert_eq!(*memory_total, rt.device().limits.global_memory);
        assert_eq!(used(&rt), 0);
        let first: Buffer<f32> = rt.buffer(ELEMENTS).unwrap();
        let part = first.slice(..ELEMENTS / 2).unwrap();
        let second = rt.buffer_from(vec![7u64; ELEMENTS]).await.unwrap();
        assert_eq!(used(&rt), 12 * ELEMENTS as u64);
        drop(second);
        eventually("the second buffer is freed", || used(&rt) == 4 * ELEMENTS as u64);
        drop(first);
        assert_eq!(used(&rt), 4 * ELEMENTS as u64, "a slice keeps the memory");
        rt.queue().fill(&part, 1.0).unwrap().await.unwrap();
        drop(part);
        eventually("the first buffer is freed", || used(&rt) == 0);
        assert!(rt.buffer::<u8>(usize::MAX / 4).is_err());
        assert_eq!(used(&rt), 0, "memory that was refused does not count");
    }
}

#[test]
fn only_open_devices_are_listed_with_their_commands() {
    let [near, far] = ["near", "far"].map(|name| Simulator::new().memory(1 << 20).named(name));
    block_on(async {
        let rt = Runtime::builder().simulator(&near).simulator(&far).build().await.unwrap();
        let names = || rt.device_stats().into_iter().map(|device| device.name).collect::<Vec<_>>();
        assert_eq!(names(), ["near"]);
        let other = rt.on(&rt.devices()[1]).await.unwrap();
        assert_eq!(names(), ["near", "far"]);
        let pause = far.pause();
        let buffer = other.buffer::<u8>(100).unwrap();
        let filled = other.queue().fill(&buffer, 1).unwrap();
        let [first, second] = &*rt.device_stats() else { panic!("{:?}", rt.device_stats()) };
        assert_eq!((first.commands_in_flight, first.memory_used), (0, 0));
        assert_eq!((second.commands_in_flight, second.memory_used), (1, 100));
        assert_eq!(second.memory_total, 1 << 20);
        drop(pause);
        filled.await.unwrap();
        assert_eq!(rt.device_stats()[1].commands_in_flight, 0);
    });
}

#[test]
fn statistics_serialize_as_maps_of_their_fields() {
    let simulator = Simulator::new().memory(1 << 20);
    block_on(async {
        let rt = Runtime::builder().simulator(&simulator).build().await.unwrap();
        let buffer = rt.buffer_from(vec![1u32; 16]).await.unwrap();
        let stats = serde_json::to_value(rt.stats()).unwrap();
        assert_eq!(stats["commands"]["submitted"], json!(1));
        assert_eq!(stats["fusion"]["overdue"], json!(0));
        let Value::Object(groups) = stats else { panic!("{stats}") };
        let fields = groups.values().map(|group| group.as_object().expect("a group is a map"));
        let fields: Vec<_> = fields.flat_map(|group| group.values()).collect();
        assert!(fields.iter().all(|field| field.is_u64()), "{groups:?}");
        // Every group and every field that `Debug` shows is there.
        let shown = format!("{:?}", rt.stats()).matches(": ").count();
        assert_eq!(groups.len() + fields.len(), shown);
        let expected = json!([{
            "index": 0,
            "name": "Simulated device",
            "backend": "simulated",
            "memory_used": 64,
            "memory_total": 1 << 20,
            "commands_in_flight": 0,
        }]);
        assert_eq!(serde_json::to_value(rt.device_stats()).unwrap(), expected);
        drop(buffer);
    });
}

#[test]
fn images_count_as_memory() {
    let simulator = Simulator::new();
    block_on(async {
        let rt = Runtime::builder().simulator(&simulator).build().await.unwrap();
        let image = rt.image_2d::<Rgba<Unorm<u8>>>(16, 8).unwrap();
        assert_eq!(used(&rt), 16 * 8 * 4);
        drop(image);
        assert_eq!(used(&rt), 0);
    });
}
