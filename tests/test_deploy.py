"""The shipped cluster files: valid by Ray's own rules and by the parts of the
RayJob schema they use, and safe.
"""

import argparse
import importlib
import json
import os
import re
import shlex
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pathspec import PathSpec
from ray.autoscaler.tags import TAG_RAY_CLUSTER_NAME

from mast_ray.training.files.shipped import SIZES
from mast_ray.verbs.main import VERBS

REPOSITORY = Path(__file__).resolve().parent.parent

# The fields of KubeRay's RayJob v1 resource that our job file uses, in our own words, each looked up
# in KubeRay's API reference (the whole definition is a megabyte); unknown names fail, because the
# API server would drop them silently.
QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^[0-9.]+(m|[kMGTPE]i?)?$"}]}
CONTAINER = {
    "type": "object",
    "required": ["name", "image"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "image": {"type": "string"},
        "env": {"type": "array"},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                k: {"type": "object", "additionalProperties": QUANTITY} for k in ("requests", "limits")
            },
        },
    },
}
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "additionalProperties": False,
            "properties": {
                "serviceAccountName": {"type": "string"},
                "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
            },
        }
    },
}
START = {"type": "object", "additionalProperties": {"type": "string"}}
RAYJOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "spec": {
            "type": "object",
            "required": ["entrypoint", "rayClusterSpec"],
            "additionalProperties": False,
            "properties": {
                "entrypoint": {"type": "string"},
                "runtimeEnvYAML": {"type": "string"},
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "ttlSecondsAfterFinished": {"type": "integer"},
                "activeDeadlineSeconds": {"type": "integer"},
                "backoffLimit": {"type": "integer"},
                "rayClusterSpec": {
                    "type": "object",
                    "required": ["headGroupSpec"],
                    "additionalProperties": False,
                    "properties": {
                        "rayVersion": {"type": "string"},
                        "enableInTreeAutoscaling": {"type": "boolean"},
                        "authOptions": {
                            "type": "object",
                            "properties": {"mode": {"enum": ["token", "disabled"]}},
                        },
                        "headGroupSpec": {
                            "type": "object",
                            "required": ["template"],
                            "additionalProperties": False,
                            "properties": {"rayStartParams": START, "template": TEMPLATE},
                        },
                        "workerGroupSpecs": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["groupName", "minReplicas", "maxReplicas", "template"],
                                "additionalProperties": False,
                                "properties": {
                                    "groupName": {"type": "string"},
                                    "replicas": {"type": "integer"},
                                    "minReplicas": {"type": "integer"},
                                    "maxReplicas": {"type": "integer"},
                                    "rayStartParams": START,
                                    "template": TEMPLATE,
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def load(name):
    return yaml.safe_load((REPOSITORY / name).read_text(encoding="utf-8"))


def test_cluster_yaml_passes_rays_own_validation_offline():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(load("cluster.yaml"))
    validate_config(config)
    assert config["available_node_types"]["a100"]["resources"]["GPU"] == 8


def test_a_mistyped_cluster_key_would_not_pass():
    from ray.autoscaler._private.util import prepare_config, validate_config

    broken = load("cluster.yaml") | {"max_wrokers": 3}
    with pytest.raises(Exception, match="max_wrokers"):
        validate_config(prepare_config(broken))


RAYJOBS = ("deploy/rayjob.yaml", "deploy/rayjob_train.yaml")


@pytest.mark.parametrize("name", RAYJOBS)
def test_the_rayjob_fits_the_schema_and_a_mistyped_field_does_not(name):
    job = load(name)
    jsonschema.validate(job, RAYJOB)
    job["spec"]["rayClusterSpec"]["workerGroupSpec"] = []
    with pytest.raises(jsonschema.ValidationError, match="workerGroupSpec"):
        jsonschema.validate(job, RAYJOB)


@pytest.mark.parametrize("name", RAYJOBS)
def test_the_entrypoint_of_a_rayjob_is_a_script_of_jobs_whose_verb_takes_its_arguments(name):
    python, script, *arguments = shlex.split(load(name)["spec"]["entrypoint"])
    verb = re.search(r'run_verb\("([a-z-]+)"\)', (REPOSITORY / script).read_text(encoding="utf-8"))
    assert python == "python" and verb is not None
    parser = argparse.ArgumentParser(exit_on_error=False)
    for option in ("--recipe", "--set"):
        parser.add_argument(option, action="append")
    importlib.import_module(f"mast_ray.verbs.{VERBS[verb[1]][0]}").add_arguments(parser)
    assert parser.parse_known_args(arguments)[1] == []


@pytest.mark.parametrize("name", RAYJOBS)
def test_the_pods_of_the_rayjob_fit_kubernetes_own_schema_and_a_mistyped_field_does_not(name):
    cluster = load(name)["spec"]["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], *(g["template"] for g in cluster["workerGroupSpecs"])]
    for template in templates:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mast"}, **template}
        kubernetes_validate.validate(pod, "1.34", strict=True)
        template["spec"]["containers"][0]["resource"] = {}
        with pytest.raises(kubernetes_validate.ValidationError, match="resource"):
            kubernetes_validate.validate(pod, "1.34", strict=True)


PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FITTING = SpecifierSet(PROJECT["requires-python"])


def test_nodes_on_aws_install_a_python_that_fits_and_what_the_autoscaler_needs():
    commands = load("cluster.yaml")["setup_commands"]
    made = [command for command in commands if "venv" in command]
    (version,) = re.findall(r"--python (\S+)", "\n".join(made))
    assert Version(version) in FITTING
    assert not any(re.search(r"\bpython3? -m venv", command) for command in commands), "that of the image"
    (installed,) = (command for command in commands if "pip install" in command)
    assert installed.startswith("~/mast/bin/pip ") and "-c ~/mast_ray/constraints.txt" in installed
    assert re.search(r"mast_ray\[aws\]", installed)
    assert any(line.startswith("boto3") for line in PROJECT["optional-dependencies"]["aws"])


def test_the_image_of_the_rayjobs_has_a_python_that_fits():
    text = (REPOSITORY / "deploy/Dockerfile").read_text(encoding="utf-8")
    (major, minor) = re.search(r"^FROM rayproject/ray:[0-9.]+-py(3)(\d+)", text, re.MULTILINE).groups()
    assert Version(f"{major}.{minor}") in FITTING


def test_the_head_may_start_nodes_and_workers_may_not():
    """The policies of docs/cluster.md go with the profiles of cluster.yaml."""
    cluster = load("cluster.yaml")
    types = cluster["available_node_types"]
    profiles = {name: kind["node_config"]["IamInstanceProfile"]["Name"] for name, kind in types.items()}
    assert profiles == {"head": "mast-head", "a100": "mast-s3-access", "cpu": "mast-s3-access"}
    text = (REPOSITORY / "docs/cluster.md").read_text(encoding="utf-8")
    of_s3, of_head = (json.loads(found) for found in re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    allowed = [
        {action for one in policy["Statement"] for action in one["Action"]} for policy in (of_s3, of_head)
    ]
    assert all(action.startswith("s3:") for action in allowed[0])
    assert allowed[1] >= {"ec2:DescribeInstances", "ec2:RunInstances", "ec2:CreateTags",
                          "ec2:TerminateInstances", "iam:PassRole"}  # fmt: skip
    (tag,) = (one["Condition"]["StringEquals"] for one in of_head["Statement"] if "Condition" in one)
    assert tag == {f"ec2:ResourceTag/{TAG_RAY_CLUSTER_NAME}": cluster["cluster_name"]}


def test_clusters_ask_for_a_token_and_files_hold_no_secret():
    cluster = load("cluster.yaml")
    starts = [
        c
        for c in cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
        if "ray start" in c
    ]
    assert len(starts) == 2 and all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert all(load(job)["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"} for job in RAYJOBS)
    for name in ("cluster.yaml", *RAYJOBS, "runtime_env.yaml", "deploy/Dockerfile"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        assert not re.search(r"AKIA|aws_secret|password|BEGIN .*KEY", text, re.IGNORECASE)


def test_what_a_job_uploads_is_the_code_and_the_shipped_weights():
    is_excluded = PathSpec.from_lines("gitwildmatch", load("runtime_env.yaml")["excludes"]).match_file
    uploaded = {}
    for folder, names, files in os.walk(REPOSITORY):
        names[:] = [n for n in names if Path(folder) != REPOSITORY or not n.startswith(".")]
        paths = (Path(folder) / name for name in files)
        uploaded |= {
            name: path.stat().st_size
            for path in paths
            if not is_excluded(name := path.relative_to(REPOSITORY).as_posix())
        }
    weights = sum(size for name, size in uploaded.items() if name.startswith("mast_ray/weights/"))
    assert weights < 30_000_000 and 0 < sum(uploaded.values()) - weights < 5_000_000
    for size in SIZES:  # `mast run` and `mast detect` on a cluster begin with them
        assert {f"mast_ray/weights/{size}/{name}" for name in ("card.json", "weights.safetensors")} <= set(
            uploaded
        )
    assert not any(name.startswith(("tests/", "docs/")) for name in uploaded)


def test_the_image_has_the_ray_of_the_rayjobs_and_of_the_constraints():
    image = re.search(
        r"^FROM rayproject/ray:([0-9.]+)-", (REPOSITORY / "deploy/Dockerfile").read_text(), re.M
    )
    pinned = re.search(r"^ray==([0-9.]+)", (REPOSITORY / "constraints.txt").read_text(), re.M)
    assert image is not None and pinned is not None
    versions = {load(name)["spec"]["rayClusterSpec"]["rayVersion"] for name in RAYJOBS}
    assert versions == {image[1]} == {pinned[1]}


def test_every_verb_but_the_one_for_a_browser_on_your_own_machine_is_a_job():
    scripts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "jobs").glob("*.py")]
    found = sorted(re.search(r'run_verb\("([a-z-]+)"\)', text)[1] for text in scripts)
    assert found == sorted(set(VERBS) - {"review"})
