"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, Edit, Engine, Loader, PromptSource, ReportSection, hookimpl

ANALYSES = [
    Analysis(
        name="model.capture",
        version=1,
        summary="raw activations of any sites into the store",
        parameters="gausslens_models.parameters:CaptureParameters",
        shape="stream",
        by_layer=True,
        analysis="gausslens_models.analyses.capture:RawCapture",
        crossed=True,
        row_blocks=True,
        bulk=True,
        estimate="gausslens_models.analyses.capture:estimate",
    ),
    Analysis(
        name="model.loss",
        version=2,
        summary="loss of each token, perplexity and bits per byte, in all and by prompt and segment",
        parameters="gausslens_models.parameters:LossParameters",
        shape="stream",
        column_blocks=True,
        analysis="gausslens_models.analyses.loss:Loss",
        texts=True,
        any_size=True,
        crossed=True,
        estimate="gausslens_models.analyses.loss:estimate",
    ),
    Analysis(
        name="model.seeds",
        version=1,
        summary="how any number varies over trainings: by the seed of the data, of the initialisation, by both",
        parameters="gausslens_models.parameters:SeedsParameters",
        shape="derived",
        analysis="gausslens_models.analyses.seeds:Seeds",
        scope="run",
    ),
    Analysis(
        name="model.generate",
        version=1,
        summary="the text that the model writes after each prompt",
        parameters="gausslens_models.parameters:GenerateParameters",
        shape="forward",
        analysis="gausslens_models.analyses.generate:Generate",
        texts=True,
        crossed=True,
        random=True,
    ),
    Analysis(
        name="model.attention",
        version=1,
        summary="attention maps of tokens or words; entropy, sinks and attention between segments by head",
        parameters="gausslens_models.parameters:AttentionMapParameters",
        shape="stream",
        by_layer=True,
        analysis="gausslens_models.analyses.attention:Attention",
        texts=True,
        exchangeable=("head",),
        crossed=True,
        estimate="gausslens_models.analyses.attention:estimate",
        settle="gausslens_models.analyses.attention:settle",
    ),
    Analysis(
        name="model.embeddings",
        version=1,
        summary="lengths, directions and softmax entropies of the token embeddings, and nearest tokens",
        parameters="gausslens_models.parameters:EmbeddingsParameters",
        shape="forward",
        analysis="gausslens_models.analyses.embeddings:Embeddings",
        crossed=True,
        texts=True,
        random=True,
    ),
]


@hookimpl
def loaders() -> list[Loader]:
    """Ways to open a model."""
    return [
        Loader(
            name="builtin",
            version=1,
            summary="models that come with gausslens: builtin:clue-tiny and builtin:tiny",
            parameters="gausslens_models.parameters:BuiltinParameters",
            claims="gausslens_models.loading.config_and_tokenizer:claims_builtin",
            open="gausslens_models.loading.pretrained:open_builtin",
            rank=100,
        ),
        Loader(
            name="transformers",
            version=1,
            summary="a local directory, an adapter, a GGUF file, hub:owner/name or a live module, run by transformers",
            parameters="gausslens_models.parameters:TransformersParameters",
            claims="gausslens_models.loading.config_and_tokenizer:claims_directory",
            open="gausslens_models.loading.pretrained:open_pretrained",
            rank=50,
        ),
        Loader(
            name="transformer-lens",
            version=1,
            summary="a local directory or a live bridge, through TransformerLens: for families not watched otherwise",
            parameters="gausslens_models.parameters:BridgeParameters",
            claims="gausslens_models.loading.config_and_tokenizer:claims_bridge",
            open="gausslens_models.loading.bridge:open_bridge",
            rank=20,
        ),
        Loader(
            name="torch",
            version=1,
            summary="a plain torch module passed from Python, with a mapping that says where it has what",
            parameters="gausslens_models.parameters:TorchParameters",
            claims="gausslens_models.loading.config_and_tokenizer:claims_mapped",
            open="gausslens_models.loading.plain_module:open_module",
            rank=60,
        ),
        Loader(
            name="weights",
            version=1,
            summary="the tensors of a local directory or an adapter, one at a time; no model is loaded",
            parameters="gausslens_models.parameters:WeightsParameters",
            claims="gausslens_models.loading.config_and_tokenizer:claims_weights",
            open="gausslens_models.loading.weights:open_weights",
            rank=10,
        ),
    ]


@hookimpl
def edits() -> list[Edit]:
    """What is laid over a model from files."""
    return [
        Edit(
            name="model.lora",
            version=1,
            summary="Merge a LoRA adapter into the model, so that base and fine-tuned stand in one study.",
            parameters="gausslens_models.parameters:LoraParameters",
            edit="gausslens_models.edits:lora",
            touches="gausslens_models.edits:touched_by_lora",
            check="gausslens_models.edits:check_lora",
        )
    ]


@hookimpl
def captures() -> list[Engine]:
    """Engines that run models and hand out activations."""
    return [
        Engine(
            name="transformers",
            version=1,
            summary="plain transformers: forward hooks and a registered attention function",
            engine="gausslens_models.capture.engine:TransformersEngine",
            serves=("transformers", "builtin"),
            rank=50,
        ),
        Engine(
            name="transformer-lens",
            version=1,
            summary="hook points of a TransformerBridge",
            engine="gausslens_models.capture.bridge_engine:BridgeEngine",
            serves=("transformer-lens",),
            rank=20,
        ),
        Engine(
            name="torch",
            version=1,
            summary="forward hooks of a plain torch module; scores and patterns of its q and k, proved by its z",
            engine="gausslens_models.capture.plain_capture:PlainEngine",
            serves=("torch",),
            rank=10,
        ),
    ]


@hookimpl
def prompt_sources() -> list[PromptSource]:
    """Where prompts come from."""
    table = "rows of a table: Parquet, Arrow, JSON lines, CSV, or a directory that datasets saved"
    examples = "an instruction, example pairs of word and clue, and a word to give a clue"
    return [
        _source("text", "texts in the run file", "TextParameters", "sources:text"),
        _source(
            *("file", "texts of a .txt, .jsonl, .json, .csv or .tsv file, whole or in chunks"),
            *("FileParameters", "sources:file"),
        ),
        _source("columns", table, "ColumnsParameters", "sources:columns", random=True),
        _source(
            *("pairs", "texts in pairs, source and target, for models of two stacks"),
            *("PairsParameters", "pairs:pairs"),
        ),
        _source("tokens", "token numbers", "TokensParameters", "sources:tokens"),
        _source("few-shot", examples, "FewShotParameters", "few_shot:few_shot", random=True),
        _source(
            *("repeated-random", "random tokens that repeat", "RepeatedRandomParameters", "sources:repeated_random"),
            random=True,
        ),
    ]


def _source(name: str, summary: str, parameters: str, prompts: str, random: bool = False) -> PromptSource:
    return PromptSource(
        name=name,
        version=1,
        summary=summary,
        parameters=f"gausslens_models.parameters:{parameters}",
        prompts=f"gausslens_models.prompts.{prompts}",
        random=random,
    )


@hookimpl
def analyses() -> list[Analysis]:
    """What a model predicts, writes and looks at; raw capture."""
    return list(ANALYSES)


@hookimpl
def report_sections() -> list[ReportSection]:
    """What the report shows of it."""
    shown = {
        "generate": ("tables", "What does it write?", "What each variant writes after the first prompts."),
        "loss": (
            "tables",
            "How well does it predict?",
            "Loss and bits per byte of each variant, in all and by segment.",
        ),
        "attention": (
            "attention",
            "Where does each head look?",
            "Entropy deficits, previous-token heads and sinks by layer and head, and a map.",
        ),
        "embeddings": ("tables", "Which tokens lie beside each other?", "The nearest tokens of the prompts' tokens."),
        "seeds": (
            "tables",
            "How much do trainings differ?",
            "How numbers vary over trainings, by the seeds of the data and of the initialisation.",
        ),
    }
    return [
        ReportSection(
            name=f"model.{name}",
            version=1,
            summary=summary,
            section=f"gausslens_models.figures.{module}:{name}",
            analyses=(f"model.{name}",),
            order=10 + place,
            question=question,
        )
        for place, (name, (module, question, summary)) in enumerate(shown.items())
    ]
