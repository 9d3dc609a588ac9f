//! Numbers of half precision, which functions convert when they load and store them.

use super::*;

const HALVES: [&[u8]; 2] = [
    include_bytes!("../../../../../tests/data/halves.spv"),
    include_bytes!("../../../../../tests/data/halves_O0.spv"),
];

fn through(first: &'static str, second: &'static str, dead: &[u32]) -> Plan {
    let launches = [(first, vec![buffer(0), buffer(1)]), (second, vec![buffer(1), buffer(2)])];
    plan(&launches, 64, dead)
}

#[test]
fn halves_that_are_not_read_later_become_private() {
    for bytes in HALVES {
        for (first, second) in [
            ("pack", "unpack"),
            ("pack_fours", "unpack_fours"),
            ("pack", "bits"),
            ("bits", "unpack"),
        ] {
            let (fused, _) = fused(bytes, &through(first, second, &[1]));
            assert_eq!(fused.internalized, [Memory(1)], "{first}, {second}");
        }
    }
}

#[test]
fn halves_that_are_read_twice_are_loaded_once_with_all_their_bits() {
    let launches =
        |kernel| [(kernel, vec![buffer(0), buffer(1)]), (kernel, vec![buffer(0), buffer(2)])];
    for bytes in HALVES {
        let (_, text) = fused(bytes, &plan(&launches("unpack"), 64, &[]));
        assert_eq!(text.matches("vload_half").count(), 2, "{text}");
        assert!(text.contains("OpTypeInt  16 0") || text.contains("OpTypeInt 16 0"), "{text}");
        let (_, text) = fused(bytes, &plan(&launches("unpack_fours"), 64, &[]));
        assert_eq!(text.matches("vstoren").count(), 1, "{text}");
    }
}

#[test]
fn the_fourth_number_of_an_aligned_vector_of_three_counts_as_touched() {
    for bytes in HALVES {
        let (fused, _) = fused(bytes, &through("pack_threes", "unpack_threes", &[1]));
        assert!(fused.internalized.is_empty());
        let outcome =
            fuse_in(bytes, &through("pack_fours", "unpack_threes", &[1]), Trust::ProofOnly);
        assert!(outcome.fused.is_ok());
    }
}

#[test]
fn the_half_of_a_neighbour_refutes_fusion() {
    for bytes in HALVES {
        let outcome = fuse_in(bytes, &through("pack", "next", &[]), Trust::Caller);
        assert_eq!(
            outcome.fused.unwrap_err(),
            "`next` reads `src` at gid+1, written by `pack` in the neighbouring work-item"
        );
    }
}
