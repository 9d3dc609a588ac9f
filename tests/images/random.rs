//! Random command DAGs over images, parts of images and buffers give the same bytes as running the commands one
//! after another in the order of submission: on the simulated device, whose native queues run concurrently, and on
//! every real device that has images.

#![allow(clippy::print_stderr, reason = "the log shows what was covered")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use futures::executor::block_on;
use kiln::images::{ImagePart, R};
use kiln::simulated::Simulator;
use kiln::{Buffer, Event, Image, Kernel, Queue, Runtime};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use support::simulation;

/// Sizes of the images, of which the last one is a volume.
const IMAGES: [[usize; 3]; 3] = [[9, 6, 1], [9, 6, 1], [5, 4, 3]];

/// Number of elements in a buffer.
const LENGTH: usize = 80;
const BUFFERS: usize = 2;
const QUEUES: usize = 3;

const KERNELS: &str = "
    kernel void add(read_only image2d_t from, write_only image2d_t to, uint number) {
        int2 at = (int2)(get_global_id(0), get_global_id(1));
        write_imageui(to, at, read_imageui(from, at) + number);
    }";

/// A box of pixels of an image.
#[derive(Clone, Debug)]
struct Place {
    image: usize,
    origin: [usize; 3],
    size: [usize; 3],
}

impl Place {
    /// Returns the positions of the pixels in memory, row by row.
    fn positions(&self) -> Vec<usize> {
        let ([x, y, z], [width, height, depth]) = (self.origin, self.size);
        let [row, column, _] = IMAGES[self.image];
        let rows = (z..z + depth).flat_map(|z| (y..y + height).map(move |y| (z, y)));
        rows.flat_map(|(z, y)| (x..x + width).map(move |x| (z * column + y) * row + x)).collect()
    }

    fn overlaps(&self, other: &Self) -> bool {
        let own = self.positions();
        self.image == other.image && other.positions().iter().any(|at| own.contains(at))
    }

    /// Returns a box of the same size at the same place in another image, as far as it fits.
    fn moved(&self, to: &Self) -> (Self, Self) {
        let size = [0, 1, 2].map(|i| self.size[i].min(to.size[i]));
        (Self { size, ..self.clone() }, Self { size, ..to.clone() })
    }
}

#[derive(Clone, Debug)]
enum Action {
    Write {
        to: Place,
        seed: u32,
    },
    Fill {
        to: Place,
        value: u32,
    },
    Read {
        from: Place,
    },
    Copy {
        from: Place,
        to: Place,
    },
    FromBuffer {
        from: usize,
        start: usize,
        to: Place,
    },
    ToBuffer {
        from: Place,
        to: usize,
        start: usize,
    },
    FillBuffer {
        buffer: usize,
        start: usize,
        len: usize,
        value: u32,
    },
    /// Launch over a part of an image; it leaves other pixels as they are.
    Add {
        from: usize,
        to: usize,
        part: Place,
        number: u32,
    },
}

fn places() -> impl Strategy<Value = Place> {
    (0..IMAGES.len(), any::<[u16; 6]>()).prop_map(|(image, random)| {
        let within = |at: usize, most: usize| usize::from(random[at]) % most;
        let origin = [0, 1, 2].map(|i| within(i, IMAGES[image][i]));
        let size = [0, 1, 2].map(|i| 1 + within(3 + i, IMAGES[image][i] - origin[i]));
        Place { image, origin, size }
    })
}

/// Boxes of pictures, which are not volumes.
fn pictures() -> impl Strategy<Value = Place> {
    places().prop_filter("it is a volume", |place| IMAGES[place.image][2] == 1)
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (places(), any::<u32>()).prop_map(|(to, seed)| Action::Write { to, seed }),
        2 => (places(), any::<u32>()).prop_map(|(to, value)| Action::Fill { to, value }),
        2 => places().prop_map(|from| Action::Read { from }),
        3 => (places(), places()).prop_map(|(from, to)| Action::Copy { from, to }),
        2 => (0..BUFFERS, 0..20usize, places())
            .prop_map(|(from, start, to)| Action::FromBuffer { from, start, to }),
        2 => (places(), 0..BUFFERS, 0..20usize)
            .prop_map(|(from, to, start)| Action::ToBuffer { from, to, start }),
        1 => (0..BUFFERS, 0..40usize, 1..40usize, any::<u32>())
            .prop_map(|(buffer, start, len, value)| Action::FillBuffer { buffer, start, len, value }),
        4 => (0..2usize, pictures(), 1..9u32).prop_map(|(from, part, number)| Action::Add {
            from,
            to: part.image,
            part,
            number,
        }),
    ]
}

/// Contents of the images and buffers after the commands so far.
struct Model {
    images: Vec<Vec<u32>>,
    buffers: Vec<Vec<u32>>,
}

impl Model {
    fn get(&self, place: &Place) -> Vec<u32> {
        place.positions().into_iter().map(|at| self.images[place.image][at]).collect()
    }

    fn set(&mut self, place: &Place, values: impl IntoIterator<Item = u32>) {
        for (at, value) in place.positions().into_iter().zip(values) {
            self.images[place.image][at] = value;
        }
    }
}

fn noise(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed ^ i).wrapping_mul(0x9e37_79b9).rotate_left(i % 32)).collect()
}

/// A device with the objects that all its cases use.
struct Bench {
    rt: Runtime,
    queues: Vec<Queue>,
    images: Vec<Image<R<u32>>>,
    buffers: Vec<Buffer<R<u32>>>,
    add: Kernel,
}

impl Bench {
    async fn new(rt: Runtime) -> Self {
        let add = support::kernel(&rt, KERNELS, "add").await;
        let images = IMAGES.map(|[width, height, depth]| match depth {
            1 => rt.image_2d(width, height).unwrap(),
            _ => rt.image_3d(width, height, depth).unwrap(),
        });
        let buffers = (0..BUFFERS).map(|_| rt.buffer(LENGTH).unwrap()).collect();
        let queues = (0..QUEUES).map(|_| rt.queue()).collect();
        Self { rt, queues, images: images.into(), buffers, add }
    }

    fn part(&self, place: &Place) -> ImagePart<R<u32>> {
        let image = &self.images[place.image];
        let ([x, y, _], [width, height, _]) = (place.origin, place.size);
        match image.size().len() {
            2 => image.part([x, y], [width, height]),
            _ => image.part(place.origin, place.size),
        }
        .unwrap()
    }

    fn slice(&self, buffer: usize, start: usize, len: usize) -> Buffer<R<u32>> {
        self.buffers[buffer].slice(start..start + len).unwrap()
    }

    /// Runs actions and the model of them. Compares every read, and all memory in the end.
    async fn check(&self, actions: &[(Action, usize)]) -> Result<(), TestCaseError> {
        let queue = &self.queues[0];
        let mut model = Model { images: Vec::new(), buffers: Vec::new() };
        for (number, image) in self.images.iter().enumerate() {
            let pixels = noise(number as u32, image.len());
            queue.write(image, pixels.iter().map(|&pixel| R([pixel])).collect::<Vec<_>>()).unwrap();
            model.images.push(pixels);
        }
        for (number, buffer) in self.buffers.iter().enumerate() {
            let elements = noise(100 + number as u32, LENGTH);
            let pixels: Vec<_> = elements.iter().map(|&element| R([element])).collect();
            queue.write(buffer, pixels).unwrap();
            model.buffers.push(elements);
        }
        let (mut events, mut reads) = (Vec::new(), Vec::new());
        for (action, queue) in actions {
            let queue = &self.queues[*queue];
            if let Action::Read { from } = action {
                reads.push((queue.read(&self.part(from)), model.get(from)));
            } else if let Some(event) = self.submit(queue, action, &mut model) {
                events.push(event);
            }
        }
        let failed = |error: kiln::Error| TestCaseError::fail(error.to_string());
        for (read, expected) in reads {
            prop_assert_eq!(numbers(read.await.map_err(failed)?), expected);
        }
        for event in events {
            event.await.map_err(failed)?;
        }
        for (image, expected) in self.images.iter().zip(model.images) {
            prop_assert_eq!(numbers(queue.read(image).await.map_err(failed)?), expected);
        }
        for (buffer, expected) in self.buffers.iter().zip(model.buffers) {
            prop_assert_eq!(numbers(queue.read(buffer).await.map_err(failed)?), expected);
        }
        Ok(())
    }

    /// Submits an action, and performs it on the model. `None` if the action would do nothing.
    fn submit(&self, queue: &Queue, action: &Action, model: &mut Model) -> Option<Event> {
        let event = match action {
            Action::Write { to, seed } => {
                let pixels = noise(*seed, to.positions().len());
                model.set(to, pixels.iter().copied());
                queue.write(&self.part(to), pixels.into_iter().map(|p| R([p])).collect::<Vec<_>>())
            }
            Action::Fill { to, value } => {
                model.set(to, std::iter::repeat(*value));
                queue.fill(&self.part(to), R([*value]))
            }
            Action::Copy { from, to } => {
                let (from, to) = from.moved(to);
                if from.overlaps(&to) {
                    return None;
                }
                let pixels = model.get(&from);
                model.set(&to, pixels);
                queue.copy(&self.part(&from), &self.part(&to))
            }
            Action::FromBuffer { from, start, to } => {
                let len = to.positions().len();
                let elements = model.buffers[*from][*start..*start + len].to_vec();
                model.set(to, elements);
                queue.copy(&self.slice(*from, *start, len), &self.part(to))
            }
            Action::ToBuffer { from, to, start } => {
                let pixels = model.get(from);
                let to_slice = self.slice(*to, *start, pixels.len());
                model.buffers[*to][*start..*start + pixels.len()].copy_from_slice(&pixels);
                queue.copy(&self.part(from), &to_slice)
            }
            Action::FillBuffer { buffer, start, len, value } => {
                model.buffers[*buffer][*start..*start + *len].fill(*value);
                queue.fill(&self.slice(*buffer, *start, *len), R([*value]))
            }
            Action::Add { from, to, part, number } => {
                if from == to {
                    return None;
                }
                let source = Place { image: *from, ..part.clone() };
                let sums: Vec<_> =
                    model.get(&source).into_iter().map(|p| p.wrapping_add(*number)).collect();
                model.set(part, sums);
                let ([x, y, _], [width, height, _]) = (part.origin, part.size);
                let arguments = (&self.images[*from], &self.images[*to], *number);
                queue.submit(self.add.launch([width, height]).offset([x, y]).args(arguments))
            }
            Action::Read { .. } => return None,
        };
        Some(event.expect("the arguments fit"))
    }
}

fn numbers(pixels: Vec<R<u32>>) -> Vec<u32> {
    pixels.into_iter().map(|R([pixel])| pixel).collect()
}

fn check_actions(bench: &Bench, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let actions = prop::collection::vec((actions(), 0..QUEUES), 1..20);
    let result =
        TestRunner::new(config).run(&actions, |actions| smol::block_on(bench.check(&actions)));
    if let Err(error) = result {
        panic!("on {}: {error}", bench.rt.device());
    }
}

/// Defines the kernel for a simulated device.
fn with_kernel(simulator: Simulator) -> Simulator {
    simulator.kernel("add", |call| {
        let (from, mut to) = (call.read::<u32>(0), call.read::<u32>(1));
        let number = call.value::<u32>(2);
        let (origin, size) = (call.offset().to_vec(), call.global_size().to_vec());
        for y in origin[1]..origin[1] + size[1] {
            for x in origin[0]..origin[0] + size[0] {
                to[y * IMAGES[0][0] + x] = from[y * IMAGES[0][0] + x].wrapping_add(number);
            }
        }
        call.write(1, &to);
    });
    simulator
}

#[test]
fn random_commands_on_images_give_the_bytes_of_their_order() {
    let cases = cases();
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            let rt = simulation::runtime(&with_kernel(simulator)).await;
            check_actions(&Bench::new(rt).await, cases);
        }
        support::on_each_device_with_images(async |rt| {
            check_actions(&Bench::new(rt).await, cases);
        })
        .await;
    });
}

/// Returns the number of cases on each device.
fn cases() -> u32 {
    std::env::var("KILN_IMAGE_CASES").map_or(1_000, |text| text.parse().expect("a number"))
}
