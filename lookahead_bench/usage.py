"""What ``python -m lookahead_bench --help`` says."""

USAGE = """\
Measures lookahead decoding and other draft-tree methods on vLLM against plain decoding: tokens per step (S),
cost of a step (c), speed-up with its interval, and whether the output is the same, token by token.

  python -m lookahead_bench [+sweep=NAME] [key=value ...]

Start here
  +sweep=ngram run.dry=true                         what would be run and about how long it takes; nothing is run
  +sweep=ngram dataset.limit=6                      lookahead at five n-gram sizes, on 6 prompts of each data set
  +sweep=strategies dataset.limit=6                 every method, side by side
  strategy=prompt_lookup dataset.limit=6            one method beside the baselines
Without dataset.limit all 164 + 80 prompts are taken, which is a matter of hours on a CPU.

More
  +sweep=grid sweep.window=[3,5] sweep.branches=[5] dataset.limit=6    lists of your own; quote them in zsh
  strategy=lookahead strategy.window=7 strategy.ngram=5                parameters of the method
  methods.vllm_ngram.prompt_lookup_max=3                               parameters of one that it is compared with
  dataset=jsonl dataset.path=prompts.jsonl                             your prompts: {"id": ..., "prompt": ...} a line
  model=/path/to/model  or  model=org/name                             your model: a local folder or a hub id
  --multirun engine.dtype=float32,bfloat16                             several runs, one after another

Sweeps (+sweep=NAME; their lists are sweep.KEY)
  ngram, window, branches   N, W or G of lookahead decoding
  grid                      W x N x G
  scaling                   W and G together: S against the logarithm of the tokens in flight
  ablation                  each choice within lookahead decoding, added and taken away
  strategies                all methods
  stock                     stock vLLM's drafters over their main parameters
  executors                 the tree in one row of attention against one row for each path
  concurrency               1 to 16 requests at once: throughput and latency
  cost                      what a step costs by its tokens in flight, for this machine and model

Methods (strategy=NAME; their parameters are strategy.KEY, described in docs/methods.md)
  lookahead                 n-grams out of Jacobi trajectories; strategy.window, .ngram, .branches
  jacobi                    a chain of guesses, each replaced by the model's own choice
  prompt_lookup             what followed the last tokens when they stood in the text before
  suffix                    the likeliest continuations of the text's longest repeated end
  token_recycling           each token's likeliest successors, as last ranked
  adaptive                  per step the draft that is worth its cost, from several sources, or none
  autoregressive            no draft: what the plug-in itself costs
  vllm, vllm_control        stock vLLM, plain: what all are compared with, and the same again in another process
  vllm_ngram, vllm_suffix, vllm_draft_model, vllm_eagle    stock vLLM's own drafters

Keys (key=value, default in brackets; all of them are in docs/configuration.md, and --cfg job shows what they come to)
  dataset                   [humaneval,mt_bench] or one of them, jsonl, hub, context
  dataset.limit             prompts of each data set, a seeded sample [all]
  model                     smollm2-135m [default], qwen2.5-coder-7b, llama-3.1-8b, a folder, a hub id
  decode.max_new_tokens     tokens of an output, at most [128]
  decode.temperature        0 is greedy [0]
  engine                    cpu [default], cuda
  engine.dtype              float32 [default; outputs must be equal], bfloat16, float16, auto
  engine.executor           tree [default], fork
  engine.enforce_eager      true: no compilation; starts in seconds, decodes slower [false where there is a compiler]
  baselines                 measured beside every method [vllm,vllm_control,autoregressive,vllm_ngram]
  run.repeats               how often each prompt is measured in each cell [1]
  run.concurrency           requests in flight at once [1]
  run.seed                  draws the sample of prompts and the order of the measurements [0]
  run.dry                   true: show the plan, run nothing [false]
  run.fresh                 true: measure anew although this very plan has been run [false]
  quality.pass_at_1         true: run the code in HumanEval's answers on the problems' tests, confined [false]
  tracking.wandb            auto [default: online with a key and a network, else offline], online, offline, disabled
  results_dir               results go to <results_dir>/<sweep>/<run> [results]

The same command again finishes what is missing and repeats nothing. Afterwards:
  python -m lookahead_bench.report results          table, figures and report.html again
  python -m lookahead_bench.regress --help          compare two runs
  python -m lookahead_bench.roofline --help         how far from what the machine can do

Exit status: 0 well; 1 a result that must not be (a float32 mismatch, a failed request, a method that drafted nothing);
2 bad input, said in one line; 130 interrupted. --hydra-help lists Hydra's own flags.
"""
