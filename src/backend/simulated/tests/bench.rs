use super::*;
#[test]
fn bench() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let kernel = only_kernel(&*device, SAXPY);
    let mut lane = device.create_lane(false).unwrap();
    let m = device.allocate(64).unwrap();
    let args = [Argument::Value(&[0; 4]), Argument::Memory(&*m), Argument::Memory(&*m)];
    let range = NdRange::from(NdSize::from(4));
    for round in 0..3 {
        let n = 2_000_000;
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(marker(&mut *lane));
        }
        eprintln!("{round} marker {:?}", t.elapsed() / n);
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(
                enqueue(
                    &mut *lane,
                    &Operation::Launch { kernel: &*kernel, arguments: &args, range: &range },
                )
                .unwrap(),
            );
        }
        eprintln!("{round} launch {:?}", t.elapsed() / n);
        let w = [marker(&mut *lane)];
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(enqueue_after(&mut *lane, &Operation::Marker, &w).unwrap());
        }
        eprintln!("{round} marker after one {:?}", t.elapsed() / n);
    }
    simulator.kernel("saxpy", |c| {
        std::hint::black_box(c.value::<f32>(0));
    });
    let n = 2_000_000;
    let t = Instant::now();
    for _ in 0..n {
        std::hint::black_box(
            enqueue(
                &mut *lane,
                &Operation::Launch { kernel: &*kernel, arguments: &args, range: &range },
            )
            .unwrap(),
        );
    }
    eprintln!("launch with closure {:?}", t.elapsed() / n);
}
#[test]
fn bench_floor() {
    let n = 5_000_000;
    for _ in 0..2 {
        let t = Instant::now();
        for _ in 0..n {
            let a: Arc<[u64; 20]> = std::hint::black_box(Arc::new([0; 20]));
            drop(a);
        }
        eprintln!("marker floor alloc {:?}", t.elapsed() / n);
        let c = std::sync::atomic::AtomicU64::new(0);
        let t = Instant::now();
        for _ in 0..n {
            std::hint::black_box(&c).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        eprintln!("marker floor rmw {:?}", t.elapsed() / n);
    }
}
