//! Order and dominators of the blocks of a function. Blocks are numbered, and the function begins with block 0.

use petgraph::algo::dominators::{self, simple_fast};
use petgraph::graph::{DiGraph, NodeIndex};

/// Dominators of the nodes of a graph: a node dominates another one if each path from the root to it passes the node.
///
/// They are calculated as K. D. Cooper, T. J. Harvey and K. Kennedy describe (A Simple, Fast Dominance Algorithm, 2001).
#[derive(Debug)]
pub struct Dominators(dominators::Dominators<NodeIndex>);

impl Dominators {
    /// Calculates the dominators in a graph of `count` nodes.
    ///
    /// # Panics
    ///
    /// If an edge or the root names a node that there is not.
    #[must_use]
    pub fn of(count: usize, edges: impl IntoIterator<Item = (usize, usize)>, root: usize) -> Self {
        let mut graph = DiGraph::<(), ()>::new();
        let nodes: Vec<_> = (0..count).map(|_| graph.add_node(())).collect();
        for (from, to) in edges {
            graph.add_edge(nodes[from], nodes[to], ());
        }
        Self(simple_fast(&graph, nodes[root]))
    }

    /// Returns the node that immediately dominates another one; `None` for the root, and for a node that is not
    /// reached.
    #[must_use]
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.0.immediate_dominator(NodeIndex::new(node)).map(NodeIndex::index)
    }

    /// Returns the nodes that dominate a node, with the node itself; `None` if it is not reached.
    #[must_use]
    pub fn all(&self, node: usize) -> Option<impl Iterator<Item = usize>> {
        self.0.dominators(NodeIndex::new(node)).map(|all| all.map(NodeIndex::index))
    }
}

/// Returns the blocks that are reached in reverse postorder: each but the first comes after one that leads to it, and
/// after all that dominate it. `successors` returns the blocks to which one of the `count` blocks may branch.
pub fn reverse_postorder<'a>(
    count: usize,
    successors: impl Fn(usize) -> &'a [usize],
) -> Vec<usize> {
    let mut seen = vec![false; count];
    let (mut order, mut stack) = (Vec::with_capacity(count), Vec::new());
    if count > 0 {
        seen[0] = true;
        stack.push((0, 0));
    }
    while let Some((at, step)) = stack.last_mut() {
        match successors(*at).get(*step) {
            Some(&next) => {
                *step += 1;
                if !seen[next] {
                    seen[next] = true;
                    stack.push((next, 0));
                }
            }
            None => {
                order.push(*at);
                stack.pop();
            }
        }
    }
    order.reverse();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(successors: &[Vec<usize>]) -> Vec<usize> {
        reverse_postorder(successors.len(), |at| &successors[at])
    }

    #[test]
    fn blocks_are_ordered_after_their_dominators() {
        // A loop of blocks 1 and 4, whose body follows its end, and an unreachable block.
        let successors = vec![vec![1], vec![3, 4], vec![], vec![5], vec![1], vec![]];
        assert_eq!(order(&successors), [0, 1, 4, 3, 5]);
        assert!(order(&[]).is_empty());
    }

    #[test]
    fn dominators_are_on_every_path() {
        // A diamond, a loop back to its end, and a node that is not reached.
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 3), (5, 4)];
        let dominators = Dominators::of(6, edges, 0);
        let parents: Vec<_> = (0..6).map(|node| dominators.parent(node)).collect();
        assert_eq!(parents, [None, Some(0), Some(0), Some(0), Some(3), None]);
        let all: Vec<_> = dominators.all(4).into_iter().flatten().collect();
        assert_eq!(all, [4, 3, 0]);
        assert!(dominators.all(5).is_none());
    }
}
