//! The example `pipeline` over images makes the same pictures as over buffers. A suite of its own, since the files
//! of the example name each other by their paths from the root.

macro_rules! of_the_example {
    ($($name:ident: $path:literal),*) => {
        $(#[allow(dead_code, unreachable_pub, reason = "the example uses the rest")]
        #[path = $path]
        mod $name;)*
    };
}

of_the_example! {
    frame: "../examples/pipeline/frame.rs",
    images: "../examples/pipeline/images.rs",
    picture: "../examples/pipeline/picture.rs",
    stages: "../examples/pipeline/stages.rs"
}

use std::path::Path;

use frame::{Frame, Pipeline};
use images::ImageFrame;
use kiln::Runtime;
use picture::Picture;
use support::on_each_device_with_images;
use support::tools::has_clang;

const PHOTOGRAPH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/astronaut.png");

/// Returns the finished picture and its edges.
async fn pictures<P: Pipeline>(rt: &Runtime, photograph: &Picture) -> [Vec<[u8; 4]>; 2] {
    let stages = P::start(rt).expect("the modules are valid");
    let frame = P::new(rt, photograph.width, photograph.height).expect("there is memory");
    let submitted = frame.submit(&rt.queue(), &stages, photograph.pixels.clone());
    let submitted = submitted.expect("the arguments fit");
    [submitted.result.await.expect("it runs"), submitted.sketch.await.expect("it runs")]
}

#[test]
fn images_give_the_same_pictures_as_buffers() {
    if !has_clang() {
        return;
    }
    let photograph = Picture::open(Path::new(PHOTOGRAPH)).expect("it is a picture");
    futures::executor::block_on(on_each_device_with_images(async |rt| {
        let over_buffers = pictures::<Frame>(&rt, &photograph).await;
        let over_images = pictures::<ImageFrame>(&rt, &photograph).await;
        for (name, expected, found) in [
            ("the picture", &over_buffers[0], &over_images[0]),
            ("the edges", &over_buffers[1], &over_images[1]),
        ] {
            assert_eq!(found.len(), expected.len());
            let differing = expected.iter().zip(found).position(|(a, b)| a != b);
            assert_eq!(differing, None, "first pixel of {name} that differs on {}", rt.device());
            assert!(expected.iter().any(|pixel| pixel != &expected[0]), "{name} is blank");
        }
    }));
}
