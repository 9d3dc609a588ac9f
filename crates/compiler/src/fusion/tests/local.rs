//! Memories that become local memory of work-groups.

use super::groups::grouped;
use super::*;

fn turn(from: u32, to: u32) -> Launch {
    ("turned_in_memory", vec![buffer(from), buffer(to)])
}

/// Fuses a plan, and asserts that all of memory 1 is in local memory, with `size` bytes.
#[track_caller]
fn assert_local(bytes: &[u8], plan: &Plan, size: u32) -> (Fused, String) {
    let outcome = fuse_in(bytes, plan, Trust::ProofOnly);
    let judgement = outcome.judgements.iter().find(|j| j.memory == Memory(1)).unwrap();
    assert_eq!(judgement.locality.as_ref().map(|locality| locality.size), Ok(size));
    assert_eq!(judgement.why_in_memory(), None);
    let fused = outcome.fused.unwrap();
    let text = valid(&fused);
    assert_eq!(fused.form(Memory(1)), Some(Internalization::Local));
    assert!(fused.internalized.contains(&Memory(1)) && fused.local.contains(&Memory(1)));
    assert!(fused.local_bytes >= size as usize);
    (fused, text)
}

#[track_caller]
fn assert_in_memory(bytes: &[u8], plan: &Plan, why: &str) {
    let outcome = fuse_in(bytes, plan, Trust::ProofOnly);
    let judgement = outcome.judgements.iter().find(|j| j.memory == Memory(1)).unwrap();
    assert_eq!(judgement.why_in_memory().as_deref(), Some(why));
    let fused = outcome.fused.unwrap();
    valid(&fused);
    assert_eq!(fused.form(Memory(1)), None);
    assert!(fused.local.is_empty());
}

#[test]
fn buffers_passed_on_within_a_work_group_become_local() {
    for bytes in ALL_PATTERNS {
        let plan = grouped(&[turn(0, 1), turn(1, 2)], &[1]);
        let (fused, text) = assert_local(bytes, &plan, 256);
        assert_eq!(Vec::from_iter(&fused.barriers), [&1]);
        let place = |slot, argument| vec![Place { slot, argument }];
        assert_eq!(fused.parameters, [place(0, 0), place(1, 1)]);
        assert_eq!(fused.local_bytes, 256);
        // No address is calculated in bytes.
        assert!(!text.contains("%uchar"), "{text}");
        // A memory that is read later does not become local.
        let plan = grouped(&[turn(0, 1), turn(1, 2)], &[]);
        assert_in_memory(bytes, &plan, "its contents may be read later");
    }
}

#[test]
fn accesses_with_an_impossible_alignment_stay_in_memory() {
    let mut words: Vec<_> =
        PATTERNS.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
    // First words of loads and stores, each with the position of the operand that announces an alignment,
    // followed by the alignment.
    let ends = [[(6 << 16) | 61, 4], [(5 << 16) | 62, 3]];
    for at in 5..words.len() {
        for [head, mask] in ends {
            let mask = at + mask as usize;
            if words[at] == head && words.get(mask..mask + 2) == Some(&[2, 4]) {
                words[mask + 1] = 24;
            }
        }
    }
    let bytes: Vec<_> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let plan = grouped(&[turn(0, 1), turn(1, 2)], &[1]);
    let why = "`turned_in_memory` writes `dst` in a way that only global memory supports";
    assert_in_memory(&bytes, &plan, why);
}

#[test]
fn entry_points_list_local_memory_where_their_version_requires_it() {
    for (minor, listed) in [(0, false), (3, false), (4, true), (6, true)] {
        let mut bytes = PATTERNS.to_vec();
        bytes[4..8].copy_from_slice(&[0, minor, 1, 0]);
        let (_, text) = assert_local(&bytes, &grouped(&[turn(0, 1), turn(1, 2)], &[1]), 256);
        let local =
            text.lines().find(|line| line.ends_with("Workgroup") && line.contains("OpVariable"));
        let id = local.unwrap().split_whitespace().next().unwrap();
        let entry = text.lines().find(|line| line.contains("OpEntryPoint")).unwrap();
        assert_eq!(entry.split_whitespace().any(|word| word == id), listed, "{entry}");
    }
}

#[test]
fn launches_with_equal_global_offsets_share_local_memory() {
    for bytes in ALL_PATTERNS {
        let mut plan = grouped(&[turn(0, 1), turn(1, 2)], &[1]);
        plan.slots.iter_mut().for_each(|slot| slot.range.set_offset(3.into()).unwrap());
        assert_local(bytes, &plan, 256);
    }
}

#[test]
fn slices_of_a_memory_become_local() {
    let slice = |offset, length| Argument::Buffer(Region { memory: Memory(1), offset, length });
    for bytes in ALL_PATTERNS {
        let launches = [
            ("turned_in_memory", vec![buffer(0), slice(512, 1024)]),
            ("turned_in_memory", vec![slice(512, 1024), buffer(2)]),
        ];
        assert_local(bytes, &grouped(&launches, &[1]), 256);
    }
}

#[test]
fn loops_over_the_elements_of_a_work_group_read_local_memory() {
    let launches = [turn(0, 1), ("group_most", vec![buffer(1), buffer(2)])];
    // Without optimisation, the range of the loop is not known.
    assert_local(PATTERNS, &grouped(&launches, &[1]), 256);
}

#[test]
fn buffers_that_only_some_work_items_write_stay_in_memory() {
    let launches = [
        ("group_most", vec![buffer(0), buffer(1)]),
        ("group_scaled", vec![buffer(3), buffer(1), buffer(2)]),
    ];
    for bytes in ALL_PATTERNS {
        let why = "`group_scaled` reads `factors`, but not all of these bytes are certainly written before";
        assert_in_memory(bytes, &grouped(&launches, &[1]), why);
        // No launch has written the memory before it is read.
        let launches = [turn(1, 2), turn(3, 1)];
        let why = "`turned_in_memory` reads `src`, but not all of these bytes are certainly written before";
        assert_in_memory(bytes, &grouped(&launches, &[1]), why);
        let launches = [("guarded_inside", vec![buffer(0), buffer(1), int(100)]), turn(1, 2)];
        assert_in_memory(bytes, &grouped(&launches, &[1]), why);
    }
}

#[test]
fn local_memory_is_limited() {
    let launches = [turn(0, 1), turn(1, 2), turn(2, 3)];
    for bytes in ALL_PATTERNS {
        let mut plan = grouped(&launches, &[1, 2]);
        plan.target.local_memory = 512;
        let (fused, _) = assert_local(bytes, &plan, 256);
        assert_eq!(fused.local_bytes, 512);
        plan.target.local_memory = 511;
        let outcome = fuse_in(bytes, &plan, Trust::ProofOnly);
        let why =
            "a work-group would need 256 bytes of local memory for it, but has only 255 bytes left";
        assert_eq!(outcome.judgements[2].why_in_memory().as_deref(), Some(why));
        let fused = outcome.fused.unwrap();
        assert_eq!(fused.local, BTreeSet::from([Memory(1)]));
        plan.target.local_memory = 255;
        let why =
            "a work-group would need 256 bytes of local memory for it, but has only 255 bytes";
        assert_in_memory(bytes, &plan, why);
    }
}

/// `turned` has 256 bytes of local memory of its own.
#[test]
fn local_memory_of_the_kernels_counts_towards_the_limit() {
    for bytes in ALL {
        let launches =
            [("turned", vec![buffer(0), buffer(1)]), ("by_group", vec![buffer(1), buffer(2)])];
        let mut plan = grouped(&launches, &[1]);
        plan.forms.insert(Memory(1), Internalization::Local);
        plan.target.local_memory = 512;
        assert_local(bytes, &plan, 256);
        plan.target.local_memory = 511;
        let why =
            "a work-group would need 256 bytes of local memory for it, but has only 255 bytes left";
        assert_in_memory(bytes, &plan, why);
    }
}

#[test]
fn private_memory_is_preferred_unless_local_is_requested() {
    for bytes in ALL {
        let launches =
            [("by_group", vec![buffer(0), buffer(1)]), ("by_group", vec![buffer(1), buffer(2)])];
        let mut plan = grouped(&launches, &[1]);
        let (fused, _) = fused(bytes, &plan);
        assert_eq!(fused.form(Memory(1)), Some(Internalization::Private));
        plan.forms.insert(Memory(1), Internalization::Local);
        let (fused, _) = assert_local(bytes, &plan, 256);
        assert!(fused.barriers.is_empty());
        plan.forms.insert(Memory(1), Internalization::Private);
        let again = fuse_in(bytes, &plan, Trust::ProofOnly).fused.unwrap();
        assert_eq!(again.form(Memory(1)), Some(Internalization::Private));
    }
    for bytes in ALL_PATTERNS {
        let mut plan = grouped(&[turn(0, 1), turn(1, 2)], &[1]);
        plan.forms.insert(Memory(1), Internalization::Private);
        assert_in_memory(
            bytes,
            &plan,
            "work-items use data that other work-items of their work-group wrote",
        );
    }
}

#[test]
fn local_memory_needs_work_groups_of_a_known_size() {
    let launches =
        [("scale", vec![buffer(0), buffer(1), float(2.0)]), ("in_place", vec![buffer(1)])];
    let mut plan = plan(&launches, 64, &[1]);
    plan.forms.insert(Memory(1), Internalization::Local);
    for bytes in ALL {
        assert_in_memory(bytes, &plan, "the size of work-groups is not known");
    }
}

#[test]
fn vectors_structs_and_parts_of_them_become_local() {
    let through = |first, second, bytes, size| {
        let launches = [(first, vec![buffer(0), buffer(1)]), (second, vec![buffer(1), buffer(2)])];
        let mut plan = grouped(&launches, &[1]);
        plan.forms.insert(Memory(1), Internalization::Local);
        assert_local(bytes, &plan, size);
    };
    for bytes in ALL {
        through("vectors", "loaded", bytes, 1024);
        through("loaded", "vectors", bytes, 1024);
        through("points", "points", bytes, 768);
    }
    through("quads", "loaded", OPTIMISED, 1024);
}
