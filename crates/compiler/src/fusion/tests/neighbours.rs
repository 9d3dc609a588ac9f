//! Fusion of launches over rows, parts of rows, and buffers that are compared.

use super::*;

const NEIGHBOURS: [&[u8]; 2] = [
    include_bytes!("../../../../../tests/data/neighbours.spv"),
    include_bytes!("../../../../../tests/data/neighbours_O1.spv"),
];

fn region(memory: u32, length: usize) -> Argument {
    Argument::Buffer(Region { memory: Memory(memory), offset: 0, length })
}

#[test]
fn parts_of_rows_that_never_meet_fuse() {
    for bytes in NEIGHBOURS {
        let launches =
            [("first_half", vec![buffer(0)]), ("second_half", vec![buffer(0), buffer(1)])];
        let outcome = fuse_in(bytes, &plan(&launches, 100, &[]), Trust::ProofOnly);
        assert!(outcome.fused.is_ok(), "{:?}", outcome.fused.err());
    }
}

#[test]
fn a_row_without_a_tail_fuses_with_launches_over_its_elements() {
    let launches = |n| {
        [
            ("first_half", vec![buffer(0)]),
            ("with_tail", vec![buffer(0), buffer(1), int(n)]),
            ("by_parts", vec![buffer(1), buffer(2)]),
        ]
    };
    for bytes in NEIGHBOURS {
        let outcome = fuse_in(bytes, &plan(&launches(8), 100, &[1]), Trust::ProofOnly);
        let fused = outcome.fused.unwrap();
        assert_eq!(fused.internalized, [Memory(1)]);
        // Shorter rows begin in the rows of other work-items.
        let outcome = fuse_in(bytes, &plan(&launches(7), 100, &[1]), Trust::ProofOnly);
        assert!(outcome.fused.is_err());
    }
}

#[test]
fn buffers_that_are_known_to_differ_do_not_prevent_internalization() {
    for bytes in NEIGHBOURS {
        let launches = [
            ("compared", vec![region(0, 400), region(1, 400)]),
            ("by_parts", vec![region(1, 400), region(2, 400)]),
        ];
        let (fused, _) = fused(bytes, &plan(&launches, 100, &[]));
        assert!(fused.internalized.is_empty());
        // The first kernel compares the address, so that its buffer stays.
        let outcome = fuse_in(bytes, &plan(&launches, 100, &[1]), Trust::ProofOnly);
        let judgement = outcome.judgements.iter().find(|j| j.memory == Memory(1)).unwrap();
        let why = judgement.why_in_memory().unwrap();
        assert_eq!(why, "for `dst`, `compared` uses its address in OpConvertPtrToU");
        assert!(outcome.fused.unwrap().internalized.is_empty());
    }
}
