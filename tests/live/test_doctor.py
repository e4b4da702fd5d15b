"""What the doctor says of the real vLLM, sound and paused."""

from pathlib import Path

import pytest

from examples.demo.__main__ import MAX_MODEL_LEN, POLICY
from proxy.doctor import Level, findings
from tests.live.conftest import TOOLS, StartEngine
from tests.proxy.doctor.looking import settings_of
from trainer.engine_control import EngineControl

ASKED = ("engine", "version", "model", "swapping", "exact mode", "capture", "template", "tool ids", "exposure", "clock")


@pytest.mark.engine
def test_a_sound_engine_passes_every_check_and_a_paused_one_is_found(tmp_path: Path, start_engine: StartEngine) -> None:
    engine = start_engine(POLICY, MAX_MODEL_LEN, *TOOLS, "--enable-scale-out")
    settings = settings_of(tmp_path, f"{engine.base_url}/v1", fidelity="exact")
    seen = [one for one in findings(settings, sampling=True) if one.check in ASKED]
    assert {one.check for one in seen} == set(ASKED)
    # Whether the tiny policy calls a tool that it has never seen is its own affair.
    assert [one for one in seen if one.level is not Level.OK and one.check != "tool ids"] == []
    assert {one.level for one in seen if one.check == "tool ids"} <= {Level.OK, Level.NOTE}
    assert len([one for one in seen if one.check == "capture"]) == 3
    control = EngineControl(engine.base_url)
    control.pause()
    try:
        (paused,) = [one for one in findings(settings, sampling=True) if one.level is Level.WRONG]
    finally:
        control.resume()
    assert (paused.check, "is paused, and no job runs" in paused.what) == ("swapping", True)
