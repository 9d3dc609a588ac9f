//! Rectangles and boxes of buffers: every command of a queue uses exactly their elements, and wrong ones are
//! refused by name.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use futures::executor::block_on;
use kiln::simulated::{Fault, Simulator};
use kiln::{Buffer, ErrorKind, Runtime};
use support::simulation;
use support::simulation::{kernel, runtime, with_kernels};

/// Runs `test` with simulated devices of both kinds, and with every real device.
fn everywhere(test: impl AsyncFn(Runtime)) {
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            test(runtime(&with_kernels(simulator)).await).await;
        }
        support::on_each_device(test).await;
    });
}

/// Returns the positions of the elements of a part of a grid, row by row.
fn positions(grid: [usize; 3], origin: [usize; 3], size: [usize; 3]) -> Vec<usize> {
    let mut positions = Vec::new();
    for z in origin[2]..origin[2] + size[2] {
        for y in origin[1]..origin[1] + size[1] {
            positions
                .extend((origin[0]..origin[0] + size[0]).map(|x| x + grid[0] * (y + grid[1] * z)));
        }
    }
    positions
}

/// Parts of a grid of 7 by 5 by 4 elements, with their origins and sizes.
const PARTS: [([usize; 3], [usize; 3]); 8] = [
    ([0, 0, 0], [7, 5, 4]),
    ([2, 1, 1], [3, 2, 2]),
    ([6, 4, 3], [1, 1, 1]),
    ([0, 0, 1], [7, 5, 2]),
    ([0, 1, 2], [7, 3, 1]),
    ([1, 0, 0], [6, 5, 4]),
    ([3, 2, 0], [1, 1, 4]),
    ([0, 4, 0], [4, 1, 3]),
];

const GRID: [usize; 3] = [7, 5, 4];

/// Number of elements of the buffers: more than the grid has.
const LEN: usize = 7 * 5 * 4 + 9;

async fn numbered(rt: &Runtime) -> (Buffer<u32>, Vec<u32>) {
    let elements: Vec<u32> = (0..LEN as u32).collect();
    (rt.buffer_from(elements.clone()).await.unwrap(), elements)
}

#[test]
fn writes_reads_and_fills_use_the_elements_of_a_part() {
    everywhere(async |rt| {
        let queue = rt.queue();
        for (origin, size) in PARTS {
            let (buffer, mut model) = numbered(&rt).await;
            let part = buffer.grid(GRID).unwrap().part(origin, size).unwrap();
            let positions = positions(GRID, origin, size);
            assert_eq!(part.len(), positions.len());
            let expected: Vec<_> = positions.iter().map(|&at| model[at]).collect();
            assert_eq!(queue.read(&part).await.unwrap(), expected);
            let written: Vec<u32> = (0..positions.len() as u32).map(|at| at * 7 + 1000).collect();
            queue.write(&part, written.clone()).unwrap();
            positions.iter().zip(written).for_each(|(&at, element)| model[at] = element);
            assert_eq!(queue.read(&buffer).await.unwrap(), model, "{origin:?} {size:?}");
            queue.fill(&part, 77).unwrap();
            positions.iter().for_each(|&at| model[at] = 77);
            let read = queue.read_into(&part, Vec::with_capacity(4)).await.unwrap();
            assert_eq!(read, vec![77; positions.len()]);
            assert_eq!(queue.read(&buffer).await.unwrap(), model, "{origin:?} {size:?}");
        }
    });
}

#[test]
fn copies_go_between_parts_of_different_grids() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let other_grid = [9, 6, 5];
        for (origin, size) in PARTS {
            let (from, elements) = numbered(&rt).await;
            let source = from.grid(GRID).unwrap().part(origin, size).unwrap();
            // The target is in a slice, which begins at no multiple of the row pitch.
            let whole = rt.buffer::<u32>(9 * 6 * 5 + 11).unwrap();
            let to = whole.slice(11..).unwrap();
            let target = to.grid(other_grid).unwrap().part([1, 1, 1], size).unwrap();
            queue.copy(&source, &target).unwrap();
            let mut model = vec![0u32; 9 * 6 * 5 + 11];
            let moves = positions(GRID, origin, size).into_iter();
            for (from, to) in moves.zip(positions(other_grid, [1, 1, 1], size)) {
                model[11 + to] = elements[from];
            }
            assert_eq!(queue.read(&whole).await.unwrap(), model, "{origin:?} {size:?}");
            // Through a buffer without gaps, and back to the same part of other memory.
            let packed = rt.buffer::<u32>(source.len()).unwrap();
            let back = rt.buffer::<u32>(LEN).unwrap();
            queue.copy(&source, &packed).unwrap();
            queue.copy(&packed, &back.grid(GRID).unwrap().part(origin, size).unwrap()).unwrap();
            let mut model = vec![0u32; LEN];
            positions(GRID, origin, size).into_iter().for_each(|at| model[at] = elements[at]);
            assert_eq!(queue.read(&back).await.unwrap(), model);
        }
    });
}

#[test]
fn parts_of_one_buffer_are_copied_unless_they_overlap() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let (buffer, elements) = numbered(&rt).await;
        let grid = buffer.grid([8, 16]).unwrap();
        let [left, right] = [[0, 0], [4, 0]].map(|origin| grid.part(origin, [4, 16]).unwrap());
        queue.copy(&left, &right).unwrap();
        let expected: Vec<u32> = elements[..128].iter().map(|at| at / 8 * 8 + at % 4).collect();
        assert_eq!(queue.read(&buffer).await.unwrap()[..128], expected);
        let error = queue.copy(&left, &grid.part([3, 0], [4, 16]).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("must not overlap"), "{error}");
    });
}

#[test]
fn large_parts_arrive() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let buffer = rt.buffer::<u32>(2048 * 1024).unwrap();
        let part = buffer.grid([2048, 1024]).unwrap().part([512, 0], [1400, 1024]).unwrap();
        let elements: Vec<u32> = (0..1400 * 1024).collect();
        queue.write(&part, elements.clone()).unwrap();
        assert!(queue.read(&part).await.unwrap() == elements);
        let row = queue.read(&buffer.slice(2048..4096).unwrap()).await.unwrap();
        assert_eq!((row[511], row[512], row[1911], row[1912]), (0, 1400, 2799, 0));
    });
}

#[test]
fn commands_on_parts_are_ordered_by_their_bytes() {
    everywhere(async |rt| {
        let (queue, scale) = (rt.queue(), support::kernel(&rt, simulation::KERNELS, "scale").await);
        let buffer = rt.buffer::<u32>(64 * 64).unwrap();
        let part = buffer.grid([64, 64]).unwrap().part([16, 16], [32, 32]).unwrap();
        for round in 1..30u32 {
            queue.fill(&buffer, round).unwrap();
            queue.write(&part, vec![round + 1; 32 * 32]).unwrap();
            queue.submit(scale.launch(64 * 64).args((3u32, &buffer))).unwrap();
            let inside = queue.read(&part);
            queue.fill(&buffer, 0).unwrap();
            assert_eq!(inside.await.unwrap(), vec![3 * (round + 1); 32 * 32]);
        }
    });
}

#[test]
fn a_part_whose_elements_are_missing_cannot_be_read() {
    let simulator = with_kernels(Simulator::new());
    block_on(async {
        let rt = runtime(&simulator).await;
        let (queue, scale) = (rt.queue(), kernel(&rt, "scale").await);
        let buffer = rt.buffer::<u32>(64).unwrap();
        let part = buffer.grid([8, 8]).unwrap().part([1, 1], [2, 2]).unwrap();
        simulator.fail_launches("scale", 1, Fault::Refused);
        let failed = queue.submit(scale.launch(64).args((2u32, &buffer))).unwrap();
        let root = failed.await.unwrap_err();
        assert!(queue.read(&part).await.unwrap_err().same(&root));
        // The elements beside the part would stay missing.
        assert!(queue.write(&part, vec![1; 4]).unwrap().await.unwrap_err().same(&root));
        queue.fill(&buffer, 5).unwrap();
        assert_eq!(queue.read(&part).await.unwrap(), [5; 4]);
    });
}

#[test]
fn grids_and_parts_that_do_not_fit_are_refused() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let buffer = rt.buffer::<u32>(100).unwrap();
        let grid = buffer.grid([10, 10]).unwrap();
        let part = grid.part([1, 1], [4, 4]).unwrap();
        let errors = [
            (
                buffer.grid([10, 11]).err(),
                "[10, 11] elements over a buffer of 100 elements does not fit",
            ),
            (buffer.grid([usize::MAX, 3]).err(), "does not fit"),
            (buffer.grid([10, 0]).err(), "is empty"),
            (buffer.grid([10]).err(), "has 1 dimensions; give 2 or 3"),
            (
                grid.part([7, 0], [4, 1]).err(),
                "[4, 1] elements at [7, 0] of a grid of [10, 10] does not lie",
            ),
            (grid.part([0, usize::MAX], [1, 1]).err(), "does not lie inside the grid"),
            (grid.part([0, 0], [0, 1]).err(), "is empty"),
            (grid.part([0, 0, 0], [1, 1, 1]).err(), "has 3 dimensions; give 2"),
            (queue.write(&part, vec![1; 15]).err(), "15 elements to a buffer of 16 elements"),
            (queue.copy(&part, &grid.part([5, 5], [2, 2]).unwrap()).err(), "16 elements"),
            (
                queue
                    .copy(
                        &part,
                        &rt.buffer(100)
                            .unwrap()
                            .grid([10, 10])
                            .unwrap()
                            .part([0, 0], [8, 2])
                            .unwrap(),
                    )
                    .err(),
                "[16, 4, 1] to [32, 2, 1] bytes, rows and slices",
            ),
            (queue.copy(&part, &buffer.slice(80..96).unwrap()).err(), "within one buffer of rows"),
        ];
        for (error, message) in errors {
            let error = error.unwrap_or_else(|| panic!("it was accepted; expected {message:?}"));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(message), "{message:?} is missing in: {error}");
        }
        rt.drain().await;
        assert_eq!(rt.stats().commands.failed, 0);
    });
}
