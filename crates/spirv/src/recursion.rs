//! Functions that call themselves, directly or through others, which OpenCL forbids. Some drivers' compilers end the
//! process then.

use std::collections::HashMap;

use rspirv::spirv::{LinkageType, Op};

use super::module::{Module, Section};

/// Function: the position of its module, and its id.
type Node = (usize, u32);

/// State of a function during the search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its calls are being followed.
    Open,
    Done,
}

/// Returns the name of a function of modules that are linked with each other, if it calls itself.
#[must_use]
pub fn recursive_function(modules: &[&Module]) -> Option<String> {
    let calls = calls(modules);
    let mut states = HashMap::<Node, State>::new();
    let mut starts: Vec<_> = calls.keys().copied().collect();
    starts.sort_unstable();
    for start in starts {
        if states.contains_key(&start) {
            continue;
        }
        states.insert(start, State::Open);
        // Functions whose calls are being followed, each with the number of calls that were.
        let mut path = vec![(start, 0)];
        while let Some((node, at)) = path.last_mut() {
            let Some(&called) = calls.get(node).and_then(|all| all.get(*at)) else {
                states.insert(*node, State::Done);
                path.pop();
                continue;
            };
            *at += 1;
            match states.get(&called) {
                Some(State::Open) => return Some(name(modules, called)),
                Some(State::Done) => {}
                None => {
                    states.insert(called, State::Open);
                    path.push((called, 0));
                }
            }
        }
    }
    None
}

/// Returns the functions that each function calls. Imports are resolved.
fn calls(modules: &[&Module]) -> HashMap<Node, Vec<Node>> {
    let (mut exports, mut imports) = (HashMap::new(), HashMap::new());
    for (at, module) in modules.iter().enumerate() {
        for linkage in module.linkages() {
            match linkage.kind {
                LinkageType::Import => _ = imports.insert((at, linkage.target), linkage.name),
                _ => _ = exports.insert(linkage.name, (at, linkage.target)),
            }
        }
    }
    let resolve = |node: Node| {
        let exporter = imports.get(&node).and_then(|name| exports.get(name));
        exporter.copied().unwrap_or(node)
    };
    let mut calls = HashMap::<Node, Vec<Node>>::new();
    for (at, module) in modules.iter().enumerate() {
        for function in &module.functions {
            let all = function.body.iter().filter(|i| i.op() == Some(Op::FunctionCall));
            let called = all.filter_map(|i| Some(resolve((at, i.word(2)?))));
            let called: Vec<_> = called.collect();
            if !called.is_empty() {
                calls.insert((at, function.id), called);
            }
        }
    }
    calls
}

fn name(modules: &[&Module], (at, function): Node) -> String {
    let names = modules[at].section(Section::Names).iter();
    let mut own = names.filter(|i| i.op() == Some(Op::Name) && i.word(0) == Some(function));
    let own = own.find_map(|i| i.string(1).map(str::to_owned));
    own.map_or_else(|| "a function".to_owned(), |name| format!("`{name}`"))
}
