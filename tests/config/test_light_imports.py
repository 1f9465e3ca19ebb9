"""A process that holds a detector has not imported torch's compiler, and can still use it."""

import subprocess
import sys

import pytest


def said_by(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["mast_ray.models.build", "mast_ray.training.assembly", "mast_ray.stages.detect.detect"]
)
def test_a_detector_is_there_without_the_compiler(module: str) -> None:
    assert said_by(f"import sys, {module}; print('torch._dynamo' in sys.modules)") == "False"


def test_the_compiler_is_there_for_who_asks() -> None:
    code = """
import sys, mast_ray.models.build, torch
operator = sys.modules["torchvision.ops.roi_align"]
from torch._dynamo.utils import is_compile_supported
assert operator.is_compile_supported("cpu") == is_compile_supported("cpu")
print(torch.compile(lambda value: value + 1, backend="eager")(torch.ones(2)).tolist(), torch._dynamo.__file__ is not None)
"""
    assert said_by(code) == "[2.0, 2.0] True"


def test_who_asks_while_it_is_imported_gets_the_real_one() -> None:
    code = """
import sys, torch
from mast_ray.config import light_imports
sys.modules.pop("torchvision", None)
tools = light_imports._StandIn(light_imports.TOOLS)
sys.modules[light_imports.TOOLS] = tools
from torch._dynamo.utils import counters
print(type(counters).__name__, isinstance(sys.modules[light_imports.TOOLS], light_imports._StandIn))
"""
    assert said_by(code) == "defaultdict False"
