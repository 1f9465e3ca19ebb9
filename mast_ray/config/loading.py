"""One way in for every change of a knob: YAML files, `--set a.b=c` and Tune
samples all pass `apply_overrides`.

Unknown keys are refused with the nearest valid one, values are checked against their type, and anything that
looks like a credential is refused: credentials come from the environment, a profile or a role.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from mast_ray.config.errors import ConfigError
from mast_ray.config.stage_knobs import DetectorTrainConfig, PretrainConfig
from mast_ray.config.tree import Config

_SECRET = re.compile(
    r"(AKIA|ASIA)[A-Z0-9]{12,}|aws_secret|secret_access_key|x-amz-(signature|security-token)|://[^/\s:@]+:[^/\s@]+@",
    re.IGNORECASE,
)


def leaf_keys(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> pydantic field of every knob below a section."""
    keys: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys |= leaf_keys(annotation, f"{prefix}{name}.")
        else:
            keys[prefix + name] = field
    return keys


def nearest_key(key: str, valid: Iterable[str]) -> str:
    """The valid key a mistyped one most resembles, by whole name or by last
    part; "" when nothing is close.
    """
    valid = list(valid)
    close = difflib.get_close_matches(key, valid, n=1, cutoff=0.6)
    if close:
        return close[0]
    last = {v.rsplit(".", 1)[-1]: v for v in reversed(valid)}
    close = difflib.get_close_matches(key.rsplit(".", 1)[-1], last, n=1, cutoff=0.6)
    return last[close[0]] if close else ""


def apply_overrides(config: Config, overrides: Mapping[str, Any]) -> Config:
    """A new config with dotted keys replaced; every change is validated and the whole is checked again."""
    tree = config.model_dump()
    valid = leaf_keys(Config)
    for key, value in overrides.items():
        if key not in valid:
            if any(name.startswith(f"{key}.") for name in valid):
                if value is None:
                    continue  # a section of a YAML file whose lines are all comments
                raise ConfigError(f"{key} is a section of settings, not one: write {key}.NAME=VALUE")
            guess = nearest_key(key, valid)
            hint = f"did you mean {guess}?" if guess else "see `mast config` for every key"
            raise ConfigError(f"unknown setting {key!r}: {hint}")
        _refuse_secret(key, value)
        words = get_args(valid[key].annotation)
        for yes, no in (("yes", "no"), ("on", "off")) if isinstance(value, bool) else ():
            if no in words:
                value = yes if value else no  # YAML 1.1 reads a bare no or off as false
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[last] = value
        if last == "epochs" and ".".join((*sections, "min_steps")) in valid.keys() - overrides.keys():
            node["min_steps"] = 0  # so many passes, whatever the recipe thinks of few chunks
    try:
        changed = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_first_problem(error)) from error
    check_config(changed)
    return changed


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"] if not isinstance(part, int))
    if problem["type"] == "tuple_type":  # one name where a list is wanted
        return f"{key}={problem['input']!r} is no list:\nwrite it in brackets, --set '{key}=[{problem['input']}]'"
    return f"{key}={problem['input']!r} is not valid: {problem['msg'].lower()}"


def _refuse_secret(key: str, value: Any) -> None:
    for item in value if isinstance(value, list | tuple) else ():
        _refuse_secret(key, item)
    if isinstance(value, str) and _SECRET.search(value):
        raise ConfigError(
            f"{key} looks like it holds a credential, which configs and logs must not carry:\n"
            "give credentials by environment variable, profile or instance role instead"
        )


def parse_set(items: Iterable[str]) -> dict[str, Any]:
    """`["a.b=3", "split.ood_sites=[S3]"]` -> {"a.b": 3, ...}; values are read as YAML scalars or lists."""
    overrides = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item!r} has no '=': write --set section.key=value")
        value = plain_yaml(text, f"--set {item[:80]!r}") if text else ""
        written = _as_written(key.strip(), yaml.compose(text, Loader=yaml.SafeLoader)) if text else None
        overrides[key.strip()] = _as_meant(value) if written is None else written
    return overrides


def _as_written(key: str, node: yaml.Node | None) -> str | list[str] | None:
    """What a knob of text, or of a list of names, is given as it stands, None for any other knob: sites may be called 001, 5e3,
    12:30 or NO, which YAML takes for 1, 5000, 750 and false, and zones -10:00 or -0500, which it takes for -600 and -320.
    """
    field = leaf_keys(Config).get(key)
    if field is None:
        return None
    is_names = get_args(field.annotation)[:1] == (str,)
    if isinstance(node, yaml.ScalarNode) and (field.annotation is str or (is_names and node.value)):
        return str(node.value)
    if is_names and isinstance(node, yaml.SequenceNode):
        items = [str(item.value) for item in node.value if isinstance(item, yaml.ScalarNode)]
        return items if len(items) == len(node.value) else None
    return None


def _texts_as_written(node: yaml.Node | None, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of the knobs of text and names in a YAML document."""
    found: dict[str, Any] = {}
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{prefix}{name.value}"
        if (written := _as_written(key, value)) is not None:
            found[key] = written
        found |= _texts_as_written(value, key + ".")
    return found


def _as_meant(value: Any) -> Any:
    # YAML 1.1 reads 1e-3 as a string where users mean a number, and 2018-07-10 as a date where we keep text.
    if isinstance(value, list):
        return [_as_meant(item) for item in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


LONGEST_YAML, DEEPEST_YAML = 200_000, 16
_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys, following the shape of Config."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, key + ".")
        else:
            flat[key] = _as_meant(value)
    return flat


def plain_yaml(text: str, origin: str) -> Any:
    """Keys, values and lists of a YAML text. Anchors and aliases are refused: 300 bytes of them unfold to gigabytes,
    and settings need none; so is anything nested deeper than settings are.
    """
    if len(text) > LONGEST_YAML:
        raise ConfigError(
            f"{origin} has {len(text):,} characters, settings have a few thousand: check the file"
        )
    depth = 0
    try:
        for token in yaml.scan(text):
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
                line = token.start_mark.line + 1
                raise ConfigError(
                    f"{origin} uses YAML's & and * (line {line}): write the values out,\n"
                    'and names that begin with one of them in quotes, e.g. ["*warbler"]'
                )
            depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
            if depth > DEEPEST_YAML:
                raise ConfigError(f"{origin} is nested {depth} deep: settings are section.key=value")
        _refuse_twice(yaml.compose(text, Loader=yaml.SafeLoader), origin)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise ConfigError(
            f"{origin} is not plain YAML (line {line}): only keys and values are allowed"
        ) from error


def _refuse_twice(node: yaml.Node | None, origin: str) -> None:
    """YAML keeps the last of two equal keys: all that stands under the first would be lost."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_twice(item, origin)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if (name := str(key.value)) in lines:
                raise ConfigError(
                    f"{origin} has {name!r} in line {lines[name]} and again in line {line}, of which only the last would count:\n"
                    "put them together"
                )
            lines[name] = line
            _refuse_twice(value, origin)


def config_from_yaml(text: str, origin: str, start: Config | None = None) -> Config:
    """Read a YAML record of a run (or a part of one) over `start`."""
    tree = plain_yaml(text, origin)
    if tree is None:
        return start or Config()
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{origin} does not hold settings: expected lines like `detector:` and `  epochs: 10`"
        )
    written = _texts_as_written(yaml.compose(text, Loader=yaml.SafeLoader))
    return apply_overrides(start or Config(), flatten(tree) | written)


def config_to_yaml(config: Config) -> str:
    """The resolved config as YAML; reading it back gives the same config."""
    return yaml.safe_dump(json.loads(config.model_dump_json()), sort_keys=False, allow_unicode=True)


def check_config(config: Config) -> None:
    """Rules between knobs; each message names both and a value that works."""
    workers = config.cluster.num_workers
    batches: dict[str, PretrainConfig | DetectorTrainConfig] = {
        "pretrain": config.pretrain,
        "detector": config.detector,
        "self_train.stage1": config.self_train.stage1,
        "self_train.stage2": config.self_train.stage2,
    }
    uneven, fitting = [], []
    for name, knobs in batches.items():
        parts = workers * knobs.accumulate
        if knobs.batch_size % parts:
            in_parts = f" in {name}.accumulate={knobs.accumulate} parts" if knobs.accumulate > 1 else ""
            uneven.append(f"{name}.batch_size={knobs.batch_size}{in_parts}")
            fitting.append(f"--set {name}.batch_size={max(parts, knobs.batch_size // parts * parts)}")
    if uneven:
        raise ConfigError(
            f"{', '.join(uneven)} cannot be split over cluster.num_workers={workers}:\nuse sizes that can, e.g. {' '.join(fitting)}"
        )
    if config.cluster.min_workers > workers:
        raise ConfigError(
            f"cluster.min_workers={config.cluster.min_workers} is more than cluster.num_workers={workers}:\n"
            f"set it to {workers} at most, or --set cluster.num_workers={config.cluster.min_workers}"
        )
    endpoint = config.storage.endpoint_url
    if endpoint and not re.match(r"https?://[^/]", endpoint):
        raise ConfigError(
            f"storage.endpoint_url={endpoint!r} is no address of a store:\n"
            "write it with its scheme, e.g. --set storage.endpoint_url=http://127.0.0.1:8333"
        )
    if config.split.train + config.split.val > 1:
        raise ConfigError(
            f"split.train={config.split.train} + split.val={config.split.val} is more than 1: nothing is left to test on"
        )
    model = config.model
    if model.finest_level not in ("8x4", "auto") and not model.can_be_finer:
        raise ConfigError(
            f"model.finest_level={model.finest_level} has no meaning for model.name={model.name} with "
            f"model.adapter={model.adapter}:\nuse --set model.adapter=hybrid, or leave it at 8x4"
        )
    both = set(config.split.ood_sites) & set(config.split.ood_dev_sites)
    if both:
        raise ConfigError(
            f"site {sorted(both)[0]!r} is in split.ood_sites and in split.ood_dev_sites:\n"
            "model selection must not see the test sites, name it in one of them"
        )
    if config.cluster.precision == "fp16" and config.cluster.use_gpu == "no":
        raise ConfigError("cluster.precision=fp16 needs a GPU: use --set cluster.precision=fp32 or bf16")
    unknown = set(config.tune.parameters) - TUNABLE
    if unknown:
        raise ConfigError(
            f"tune.parameters names {sorted(unknown)[0]!r}, which cannot be searched: choose from {', '.join(sorted(TUNABLE))}"
        )


TUNABLE = frozenset(
    {
        "lambda_cls",
        "lambda_box",
        "lambda_iou",
        "lambda_con",
        "threshold",
        "empty_weight",
        "backbone_multiplier",
        "learning_rate",
    }
)
