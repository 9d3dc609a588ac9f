//! Memories that become local memory of work-groups.

use super::*;

fn turn(from: u32, to: u32) -> Launch {
    ("turned_in_memory", vec![buffer(from), buffer(to)])
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
    let outcome = fuse_in(&bytes, &plan, Trust::ProofOnly);
    let judgement = outcome.judgements.iter().find(|j| j.memory == Memory(1)).unwrap();
    assert_eq!(judgement.why_in_memory().as_deref(), Some(why));
    let fused = outcome.fused.unwrap();
    valid(&fused);
    assert_eq!(fused.form(Memory(1)), None);
    assert!(fused.local.is_empty());
}

#[test]
fn entry_points_list_local_memory_where_their_version_requires_it() {
    for (minor, listed) in [(0, false), (3, false), (4, true), (6, true)] {
        let mut bytes = PATTERNS.to_vec();
        bytes[4..8].copy_from_slice(&[0, minor, 1, 0]);
        let (fused, text) = fused(&bytes, &grouped(&[turn(0, 1), turn(1, 2)], &[1]));
        assert_eq!(fused.form(Memory(1)), Some(Internalization::Local));
        assert_eq!(fused.local_bytes, 256);
        let local =
            text.lines().find(|line| line.ends_with("Workgroup") && line.contains("OpVariable"));
        let id = local.unwrap().split_whitespace().next().unwrap();
        let entry = text.lines().find(|line| line.contains("OpEntryPoint")).unwrap();
        assert_eq!(entry.split_whitespace().any(|word| word == id), listed, "{entry}");
    }
}
