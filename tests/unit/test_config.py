import httpx
import pytest

from app.config import CHECKOUT, Settings, knobs
from app.errors import BadInput


def test_every_setting_has_a_variable_and_help() -> None:
    names = [knob.env for knob in knobs().values()]
    assert len(names) == len(set(names))
    assert all(knob.help for knob in knobs().values())


def test_every_setting_is_in_the_documentation() -> None:
    pages = "".join(path.read_text() for path in (CHECKOUT / "docs").rglob("*.md"))
    assert [knob.env for knob in knobs().values() if knob.env not in pages] == []


def test_defaults_need_no_environment() -> None:
    settings = Settings.from_env({"PORT": "", "HOME": "/nowhere"})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.database_url) == ("127.0.0.1", 8000, None)
    assert settings.data_dir == CHECKOUT / ".gpucast"


def test_the_server_keeps_connections_for_longer_than_a_client() -> None:
    expiry = httpx.Limits().keepalive_expiry
    assert expiry is not None
    assert Settings().keep_alive_s > 2 * expiry  # else a request meets a connection that is just closed


def test_a_child_process_gets_the_same_settings() -> None:
    settings = Settings.from_env({"PORT": "9000", "GPUCAST_HEARTBEAT_S": "0.25", "DATABASE_URL": "postgresql://x/y"})
    assert Settings.from_env(settings.environment()) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "eighty"), ("PORT", "-1"), ("GPUCAST_HEARTBEAT_S", "nan"), ("GPUCAST_LOG_LEVEL", "loud")],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=name) as caught:
        Settings.from_env({name: value})
    assert caught.value.errors[0].loc == (name,)
