"""The arguments and options of every command, for completion. `make docs` writes this file from the commands.

A line is a command: `KIND` is an argument, `--option=KIND` an option, `--flag` one without a value; `...` may be given
again. A value is one of completion.KINDS, or one of the words between `|`.
"""

WORDS = """
plan PROGRAM --model=MODEL --hardware=GPU... --weights=ANY... --tp=ANY... --dp=ANY... --ep=on|off
    --max-num-seqs=ANY... --max-num-batched-tokens=ANY... --engine=ANY... --rate=ANY --concurrency=ANY
    --requests=ANY --prompt-len=ANY --output-len=ANY --shared-prefix=ANY --trace=FILE --experiments=FILE
    --id=ANY... --slo=ANY... --price=ANY... --seeds=ANY --csv=FILE --parquet=FILE --latex=FILE --json --quiet
    --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain --verbose
predict PROGRAM --experiments=FILE --id=ANY... --exclude=ANY... --model=MODEL --hardware=GPU --tp=ANY
    --engine=ANY... --rate=ANY --concurrency=ANY --requests=ANY --prompt-len=ANY --output-len=ANY
    --shared-prefix=ANY --trace=FILE --prefill=ANY --decode=ANY --seeds=ANY --part=train|valid|test
    --sweep=ANY... --slo=ANY... --against=PROGRAM --csv=FILE --parquet=FILE --latex=FILE --json --quiet
    --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain --verbose
sensitivity PROGRAM --experiments=FILE --id=ANY... --seeds=ANY --csv=FILE --parquet=FILE --latex=FILE --json
    --quiet --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain --verbose
kernels MODEL --hardware=GPU --tp=ANY --engine=ANY... --context=ANY --json --explain --verbose
probe PROGRAM --experiments=FILE --id=ANY... --model=MODEL --hardware=GPU --tp=ANY... --engine=ANY...
    --rate=ANY --concurrency=ANY --requests=ANY --prompt-len=ANY --output-len=ANY --shared-prefix=ANY
    --trace=FILE --budget-runs=ANY --out=FILE --json --quiet --max-operations=ANY --max-conditionals=ANY
    --max-constants=ANY --explain
ingest FOLDER... --trace=FILE... --tracev2=FILE... --model=MODEL --out=FILE --hardware=GPU --engine=ANY...
    --model-config=ANY... --workers=ANY --json --quiet --explain
fit PROGRAM --experiments=FILE --id=ANY... --exclude=ANY... --only=ANY... --scope=shared|per-model
    --per-model=ANY... --method=auto|linear|lbfgsb|neldermead|cma|all... --steps=FILE... --sync
    --loss=relative|ridge|log|quantile --quantile=ANY --split --learning-curve --score-steps
    --target=cycle|duration --part=all|train|valid|test --blend --top=ANY --out=FILE --workers=ANY
    --cluster=ANY --json --quiet --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain
    --verbose
drift PROGRAM --experiments=FILE --id=ANY... --json --quiet --max-operations=ANY --max-conditionals=ANY
    --max-constants=ANY
model.add FILE --id=MODEL --generation-config=FILE --replace
model.list --json
model.remove MODEL
model.show MODEL --json
run --models=ANY... --start=PROGRAM... --only-start --repeats=ANY --replay=RUN --ideas=ANY --all
    --proposer=offline|llm|auto --llm=ANY... --api-base=ANY --price=ANY... --max-usd=ANY --max-calls=ANY
    --max-tokens=ANY --rpm=ANY --concurrency=ANY --timeout=ANY --judge=ANY... --notes-every=ANY
    --prompts=FOLDER --problem=FILE --background=FILE... --library=FOLDER --cache=FOLDER --config=CONFIG
    --budget=ANY --seed=ANY --workers=ANY --cluster=ANY --out=FILE --experiments=FILE... --workloads=ANY...
    --exclude=ANY... --evolve=step|queueing|both --json --quiet --max-operations=ANY --max-conditionals=ANY
    --max-constants=ANY --explain --verbose
pilot --model=MODEL --generations=ANY --repeats=ANY --proposer=offline|llm|auto --llm=ANY... --api-base=ANY
    --price=ANY... --max-usd=ANY --max-calls=ANY --max-tokens=ANY --rpm=ANY --concurrency=ANY --timeout=ANY
    --judge=ANY... --notes-every=ANY --prompts=FOLDER --problem=FILE --background=FILE... --library=FOLDER
    --cache=FOLDER --config=CONFIG --budget=ANY --seed=ANY --workers=ANY --cluster=ANY --out=FILE
    --experiments=FILE... --workloads=ANY... --exclude=ANY... --evolve=step|queueing|both --json --quiet
    --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain --verbose
resume RUN --max-usd=ANY --max-calls=ANY --max-tokens=ANY --to=ANY --workers=ANY --cluster=ANY --all --json
    --quiet --explain --verbose
validate RUN --folds=ANY... --budget=ANY --hindsight --ask-models --max-usd=ANY --max-calls=ANY
    --max-tokens=ANY --against=PROGRAM --again --workers=ANY --cluster=ANY --csv=FILE --parquet=FILE
    --latex=FILE --json --quiet --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain
    --verbose
llm.check MODEL --api-base=ANY --price=ANY --max-usd=ANY --json
llm.prompt RUN ANY --sent --answer --tokens --json
list --runs=FILE --json --explain --verbose
archive RUN --grid --pareto --by=proposer --csv=FILE --parquet=FILE --latex=FILE --json --explain --verbose
show PROGRAM --explain --diagnose --ablate --check --assess=RUN --against=PROGRAM --fields --physics
    --experiments=FILE --id=ANY... --csv=FILE --parquet=FILE --latex=FILE --workers=ANY --cluster=ANY --json
    --quiet --verbose --max-operations=ANY --max-conditionals=ANY --max-constants=ANY
score PROGRAM --experiments=FILE --id=ANY... --evaluation=FILE... --scenarios=FILE --catalog=FILE
    --simresult=FILE --csv=FILE --parquet=FILE --latex=FILE --json --max-operations=ANY --max-conditionals=ANY
    --max-constants=ANY --explain
report RUN|PROGRAM --experiments=FILE --id=ANY... --only=ANY... --md --html=FILE --workers=ANY --cluster=ANY
    --json --quiet --max-operations=ANY --max-conditionals=ANY --max-constants=ANY --explain
plot ANY... --kind=front|history|grid|fit|curve|terms|latency|speed|cost --out=FILE --experiments=FILE
    --id=ANY... --max-operations=ANY --max-conditionals=ANY --max-constants=ANY
view FILE... --port=ANY --export=FILE --json --quiet
emit PROGRAM --host=blis-4|blis-5|blis-kernel --out=FILE --into=FILE --dry-run --coefficients
    --experiments=FILE --id=ANY... --model=MODEL --hardware=GPU --tp=ANY --deployment=ANY... --host-facts
    --gpus=ANY... --name=ANY --check --max-operations=ANY --max-conditionals=ANY --max-constants=ANY
simulate --case=FILE --trace=FILE --tracev2=FILE --workload=FILE --experiments=FILE --id=ANY --program=PROGRAM
    --model=MODEL --hardware=GPU --tp=ANY --seed=ANY --out=FILE --export=tracev2 --results=FILE --json --quiet
    --max-operations=ANY --max-conditionals=ANY --max-constants=ANY
export RUN|PROGRAM --to=openevolve|openevolve-task|sympy|latex|json --out=FILE --config=CONFIG
    --experiments=FILE... --json --max-operations=ANY --max-conditionals=ANY --max-constants=ANY
bench --most=ANY --json --quiet
"""
