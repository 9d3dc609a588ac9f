//! Decoding with a small transformer: the same launches for every token, submitted one by one, fused, recorded, and
//! recorded and fused.
//!
//! ```sh
//! cargo run --release --example decoder
//! KILN_DEVICE=cpu cargo run --release --example decoder # on a device of your choice
//! ```
//!
//! A decoder of a language model launches many small kernels for each token, so the host often decides how fast it is.
//! The model has random weights. All ways to run it must choose the same tokens.

#![allow(clippy::print_stdout)]
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use futures::executor::block_on;
use kiln::fusion::CompleteFusion;
use kiln::{Buffer, Graph, Launch, Queue, Recorder, Runtime};

kiln::kernels! {
    mod decoder = "decoder.cl";
}

const WIDTH: usize = 256;
const HEADS: usize = 8;
const HIDDEN: usize = 512;
const CONTEXT: usize = 128;
const VOCABULARY: usize = 1000;
const LAYERS: usize = 4;

/// Launches of a fusion scope.
const SCOPE: usize = 6;

/// Tokens before the measured ones, for builds and the trials of fused kernels.
const WARM_UP: usize = 64;

const TOKENS: usize = CONTEXT - 1;

fn main() -> kiln::Result<()> {
    block_on(async {
        // PoCL's compiler takes minutes for some fused kernels.
        let rt = Runtime::builder().fusion_limit(Duration::from_secs(2)).build().await?;
        let model = Model::new(&rt).await?;
        println!("{LAYERS} layers, {} launches a token, on {}", model.launches()?, rt.device());
        println!("{:20} {:>10} {:>22} {:>8}", "", "tokens/s", "host time, us/token", "kernels");
        let plain = model.measure("one by one", Way::OneByOne).await?;
        let others = [
            ("fused", Way::Fused),
            ("recorded", Way::Recorded { fused: false }),
            ("recorded and fused", Way::Recorded { fused: true }),
        ];
        for (name, way) in others {
            let tokens = model.measure(name, way).await?;
            assert_eq!(tokens, plain, "{name} launches choose the same tokens");
        }
        println!("all chose the same tokens, the first ones {:?}", &plain[..8]);
        Ok(())
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    OneByOne,
    Fused,
    Recorded { fused: bool },
}

/// Weights of a layer.
struct Layer {
    attention_scale: Buffer<f32>,
    query: Buffer<f32>,
    key: Buffer<f32>,
    value: Buffer<f32>,
    output: Buffer<f32>,
    hidden_scale: Buffer<f32>,
    gate: Buffer<f32>,
    up: Buffer<f32>,
    down: Buffer<f32>,
    /// Keys and values of all positions so far.
    keys: Buffer<f32>,
    values: Buffer<f32>,
}

/// Results within a step.
struct Scratch {
    x: Buffer<f32>,
    /// Results of each layer.
    layers: Vec<LayerScratch>,
    normed: Buffer<f32>,
    logits: Buffer<f32>,
}

#[derive(Clone)]
struct LayerScratch {
    normed: Buffer<f32>,
    query: Buffer<f32>,
    key: Buffer<f32>,
    value: Buffer<f32>,
    scores: Buffer<f32>,
    attended: Buffer<f32>,
    attention: Buffer<f32>,
    hidden: Buffer<f32>,
    gate: Buffer<f32>,
    up: Buffer<f32>,
    result: Buffer<f32>,
}

impl Scratch {
    /// Creates the buffers of a graph, which finds out by itself what can share memory.
    fn of_graph(recorder: &mut Recorder) -> kiln::Result<Self> {
        let mut buffer = |len| recorder.temporary(len);
        let layers =
            (0..LAYERS).map(|_| LayerScratch::new(&mut buffer)).collect::<Result<_, _>>()?;
        Self::new(buffer, layers)
    }

    /// Creates buffers that all layers share.
    fn shared(rt: &Runtime) -> kiln::Result<Self> {
        let layer = LayerScratch::new(&mut |len| rt.buffer(len))?;
        Self::new(|len| rt.buffer(len), vec![layer; LAYERS])
    }

    fn new(
        mut buffer: impl FnMut(usize) -> kiln::Result<Buffer<f32>>,
        layers: Vec<LayerScratch>,
    ) -> kiln::Result<Self> {
        let [x, normed, logits] = [buffer(WIDTH)?, buffer(WIDTH)?, buffer(VOCABULARY)?];
        Ok(Self { x, layers, normed, logits })
    }
}

impl LayerScratch {
    fn new(buffer: &mut impl FnMut(usize) -> kiln::Result<Buffer<f32>>) -> kiln::Result<Self> {
        Ok(Self {
            normed: buffer(WIDTH)?,
            query: buffer(WIDTH)?,
            key: buffer(WIDTH)?,
            value: buffer(WIDTH)?,
            scores: buffer(HEADS * CONTEXT)?,
            attended: buffer(WIDTH)?,
            attention: buffer(WIDTH)?,
            hidden: buffer(WIDTH)?,
            gate: buffer(HIDDEN)?,
            up: buffer(HIDDEN)?,
            result: buffer(WIDTH)?,
        })
    }
}

struct Model {
    rt: Runtime,
    queue: Queue,
    kernels: decoder::Kernels,
    table: Buffer<f32>,
    layers: Vec<Layer>,
    last_scale: Buffer<f32>,
    vocabulary: Buffer<f32>,
    scratch: Scratch,
    /// Last token, and its position.
    state: Buffer<u32>,
    /// Chosen token of each position.
    tokens: Buffer<u32>,
}

/// Source of random weights.
struct Weights<'a> {
    rt: &'a Runtime,
    rng: fastrand::Rng,
}

impl Weights<'_> {
    /// Creates a matrix, whose products keep the size of the vectors.
    async fn matrix(&mut self, rows: usize, columns: usize) -> kiln::Result<Buffer<f32>> {
        let spread = (3.0 / columns as f32).sqrt();
        let weights = (0..rows * columns).map(|_| (self.rng.f32() * 2.0 - 1.0) * spread);
        self.rt.buffer_from(weights.collect::<Vec<_>>()).await
    }

    async fn ones(&mut self) -> kiln::Result<Buffer<f32>> {
        self.rt.buffer_from(vec![1.0; WIDTH]).await
    }

    async fn layer(&mut self) -> kiln::Result<Layer> {
        Ok(Layer {
            attention_scale: self.ones().await?,
            query: self.matrix(WIDTH, WIDTH).await?,
            key: self.matrix(WIDTH, WIDTH).await?,
            value: self.matrix(WIDTH, WIDTH).await?,
            output: self.matrix(WIDTH, WIDTH).await?,
            hidden_scale: self.ones().await?,
            gate: self.matrix(HIDDEN, WIDTH).await?,
            up: self.matrix(HIDDEN, WIDTH).await?,
            down: self.matrix(WIDTH, HIDDEN).await?,
            keys: self.rt.buffer(CONTEXT * WIDTH)?,
            values: self.rt.buffer(CONTEXT * WIDTH)?,
        })
    }
}

impl Model {
    async fn new(rt: &Runtime) -> kiln::Result<Self> {
        let mut weights = Weights { rt, rng: fastrand::Rng::with_seed(1) };
        let mut layers = Vec::new();
        for _ in 0..LAYERS {
            layers.push(weights.layer().await?);
        }
        Ok(Self {
            rt: rt.clone(),
            queue: rt.queue(),
            kernels: decoder::Kernels::build(rt).await?,
            table: weights.matrix(VOCABULARY, WIDTH).await?,
            layers,
            last_scale: weights.ones().await?,
            vocabulary: weights.matrix(VOCABULARY, WIDTH).await?,
            scratch: Scratch::shared(rt)?,
            state: rt.buffer(2)?,
            tokens: rt.buffer(CONTEXT)?,
        })
    }

    /// Passes the launches of one token to `submit`, in order.
    fn step(
        &self,
        scratch: &Scratch,
        mut submit: impl FnMut(Launch) -> kiln::Result<()>,
    ) -> kiln::Result<()> {
        let Self { kernels, state, .. } = self;
        let Scratch { x, layers, normed, logits } = scratch;
        submit(kernels.embed(WIDTH, state, &self.table, x))?;
        for (layer, s) in self.layers.iter().zip(layers) {
            self.attention(layer, (x, s), &mut submit)?;
            submit(kernels.rms_norm(WIDTH, x, &layer.hidden_scale, &s.hidden))?;
            submit(kernels.matvec(HIDDEN, &layer.gate, &s.hidden, &s.gate, WIDTH as u32))?;
            submit(kernels.matvec(HIDDEN, &layer.up, &s.hidden, &s.up, WIDTH as u32))?;
            submit(kernels.silu(HIDDEN, &s.gate, &s.up))?;
            submit(kernels.matvec(WIDTH, &layer.down, &s.up, &s.result, HIDDEN as u32))?;
            submit(kernels.add(WIDTH, &s.result, x))?;
        }
        submit(kernels.rms_norm(WIDTH, x, &self.last_scale, normed))?;
        submit(kernels.matvec(VOCABULARY, &self.vocabulary, normed, logits, WIDTH as u32))?;
        submit(kernels.choose(1, logits, state, &self.tokens))
    }

    fn attention(
        &self,
        layer: &Layer,
        (x, s): (&Buffer<f32>, &LayerScratch),
        submit: &mut impl FnMut(Launch) -> kiln::Result<()>,
    ) -> kiln::Result<()> {
        let Self { kernels, state, .. } = self;
        submit(kernels.rms_norm(WIDTH, x, &layer.attention_scale, &s.normed))?;
        for (matrix, to) in
            [(&layer.query, &s.query), (&layer.key, &s.key), (&layer.value, &s.value)]
        {
            submit(kernels.matvec(WIDTH, matrix, &s.normed, to, WIDTH as u32))?;
        }
        submit(kernels.rope(WIDTH / 2, state, &s.query, &s.key))?;
        submit(kernels.append(WIDTH, state, &s.key, &s.value, &layer.keys, &layer.values))?;
        submit(kernels.scores(HEADS * CONTEXT, state, &s.query, &layer.keys, &s.scores))?;
        submit(kernels.softmax(HEADS, &s.scores))?;
        submit(kernels.attend(WIDTH, &s.scores, &layer.values, &s.attended))?;
        submit(kernels.matvec(WIDTH, &layer.output, &s.attended, &s.attention, WIDTH as u32))?;
        submit(kernels.add(WIDTH, &s.attention, x))
    }

    /// Submits the launches of one token through fusion scopes, and adds the ends of the scopes to `scopes`.
    fn submit_fused(&self, scopes: &mut Vec<CompleteFusion>) -> kiln::Result<()> {
        let mut scope = (self.queue.start_fusion(), 0);
        self.step(&self.scratch, |launch| {
            let (fusion, submitted) = &mut scope;
            fusion.submit(launch)?;
            *submitted += 1;
            if *submitted == SCOPE {
                let full = std::mem::replace(&mut scope, (self.queue.start_fusion(), 0));
                scopes.push(full.0.complete());
            }
            Ok(())
        })?;
        scopes.push(scope.0.complete());
        Ok(())
    }

    /// Records the launches of one token.
    async fn record(&self, fused: bool) -> kiln::Result<Graph> {
        let mut recorder = self.queue.record();
        if fused {
            recorder.fuse();
        }
        let scratch = Scratch::of_graph(&mut recorder)?;
        self.step(&scratch, |launch| recorder.submit(launch))?;
        recorder.finish().await
    }

    /// Returns the number of launches of one token.
    fn launches(&self) -> kiln::Result<usize> {
        let mut count = 0;
        self.step(&self.scratch, |_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    /// Decodes tokens twice, prints the times of the second run, and returns its tokens.
    async fn measure(&self, name: &str, way: Way) -> kiln::Result<Vec<u32>> {
        self.decode(way, WARM_UP).await?;
        let before = self.rt.stats().launches.submitted;
        let (host, all) = self.decode(way, TOKENS).await?;
        let kernels = (self.rt.stats().launches.submitted - before) as f64 / TOKENS as f64;
        let per_second = TOKENS as f64 / all.as_secs_f64();
        let host = host.as_secs_f64() * 1e6 / TOKENS as f64;
        println!("{name:20} {per_second:>10.0} {host:>22.1} {kernels:>8.1}");
        let mut tokens = self.queue.read(&self.tokens).await?;
        tokens.truncate(TOKENS);
        Ok(tokens)
    }

    /// Decodes `count` tokens from the first position on. Returns the time that submitting them took, and the whole
    /// time.
    async fn decode(&self, way: Way, count: usize) -> kiln::Result<(Duration, Duration)> {
        self.queue.fill(&self.state, 0)?;
        let graph = match way {
            Way::Recorded { fused } => Some(self.record(fused).await?),
            Way::OneByOne | Way::Fused => None,
        };
        let (start, mut host) = (Instant::now(), Duration::ZERO);
        for _ in 0..count {
            let submitting = Instant::now();
            let mut scopes = Vec::new();
            match (&graph, way) {
                (Some(graph), _) => drop(graph.replay().submit()?),
                (None, Way::Fused) => self.submit_fused(&mut scopes)?,
                (None, _) => {
                    self.step(&self.scratch, |launch| self.queue.submit(launch).map(drop))?;
                }
            }
            host += submitting.elapsed();
            for scope in scopes {
                scope.await?;
            }
        }
        self.queue.marker()?.await?;
        Ok((host, start.elapsed()))
    }
}
