"""Profile files, and the config field that names them."""

from pathlib import Path

import pytest

from balancer.config.config import Config, ConfigError, effective_yaml, load, parse
from balancer.config.profile_file import ModelProfile, Profile, ProfilePoint, dump_profile, load_profile


def points(*times: tuple[int, float]) -> tuple[ProfilePoint, ...]:
    return tuple(ProfilePoint(rows=rows, mean_s=mean_s, executions=50) for rows, mean_s in times)


def profiled(*times: tuple[int, float], model: str = "m") -> ModelProfile:
    return ModelProfile(model=model, version="1", max_batch_rows=8, instances=1, points=points(*times))


def write(path: Path, *models: ModelProfile, device: str = "A100") -> Path:
    profile = Profile(device=device, measured_at="2026-01-01T12:00:00+00:00", server="triton 2.51.0", models=models)
    path.write_text(dump_profile(profile))
    return path


def config_file(folder: Path, *names: str) -> Path:
    path = folder / "balancer.yaml"
    path.write_text(f"estimators: {{profiles: [{', '.join(names)}]}}\n")
    return path


class TestAffine:
    def test_a_line_is_found_exactly(self) -> None:
        assert profiled((1, 0.012), (4, 0.018), (8, 0.026)).affine() == pytest.approx((0.010, 0.002))

    def test_errors_count_in_proportion(self) -> None:
        """A millisecond off at 10 ms weighs as much as 100 off at 1 s: small batches are what most requests are."""
        fixed_s, per_row_s = profiled((1, 0.010), (2, 0.010), (100, 1.0)).affine()
        assert fixed_s + per_row_s == pytest.approx(0.010, rel=0.4)
        assert per_row_s == pytest.approx(0.01, rel=0.4)

    def test_neither_part_is_negative(self) -> None:
        assert profiled((1, 0.012), (8, 0.010)).affine() == pytest.approx((0.0109, 0.0), rel=0.01)
        fixed_s, per_row_s = profiled((1, 0.001), (2, 0.004), (4, 0.016)).affine()
        assert fixed_s == 0
        assert per_row_s > 0

    def test_one_size_tells_nothing_of_rows(self) -> None:
        assert profiled((4, 0.010)).affine() == pytest.approx((0.010, 0.0))


class TestFile:
    def test_it_reads_back_as_it_was_written(self, tmp_path: Path) -> None:
        path = write(tmp_path / "p.yaml", profiled((1, 0.01), (8, 0.02)), profiled((1, 0.5), model="other"))
        assert dump_profile(load_profile(path)) == path.read_text()
        assert [model.model for model in load_profile(path).models] == ["m", "other"]

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                "rows: 1",
                "rows: 0",
                r"p.yaml:11: models\[0\].points\[0\].rows: 0 is not allowed: must be greater than or equal to 1",
            ),
            ("rows: 1", "rows: 8", "rows must ascend and be there once each; sort the points"),
            ("input_s: 0.0", "input_s: 0.5", "must be less than mean_s, 0.01, of which it is a part"),
            ("device: A100", "gpu: A100", "gpu: unknown field"),
            ("points:", "points: []\n  about:", "one point is needed"),
        ],
    )
    def test_what_does_not_fit_is_refused_at_its_place(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        path = write(tmp_path / "p.yaml", profiled((1, 0.01), (8, 0.02)))
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(ConfigError, match=message):
            load_profile(path)


class TestConfig:
    def test_profiles_are_found_beside_the_config_and_reach_the_core_as_lines(self, tmp_path: Path) -> None:
        write(tmp_path / "a100.yaml", profiled((1, 0.012), (4, 0.018)))
        write(tmp_path / "t4.yaml", profiled((1, 0.12), (4, 0.18)), profiled((1, 0.5), model="big"), device="T4")
        config = load(config_file(tmp_path, "a100.yaml", "t4.yaml"))
        profiles = config.settings().estimators.profiles
        assert profiles.keys() == {("A100", "m"), ("T4", "m"), ("T4", "big")}
        assert profiles["A100", "m"] == pytest.approx((0.010, 0.002))

    def test_the_effective_config_names_the_same_files_from_anywhere(self, tmp_path: Path) -> None:
        write(tmp_path / "a100.yaml", profiled((1, 0.012)))
        config = load(config_file(tmp_path, "a100.yaml"))
        assert parse(effective_yaml(config), "elsewhere/other.yaml") == config

    def test_a_config_whose_profile_changed_is_another_config(self, tmp_path: Path) -> None:
        write(tmp_path / "a100.yaml", profiled((1, 0.012)))
        before = load(config_file(tmp_path, "a100.yaml"))
        write(tmp_path / "a100.yaml", profiled((1, 0.024)))
        assert load(tmp_path / "balancer.yaml") != before

    def test_none_is_the_default(self) -> None:
        assert Config().settings().estimators.profiles == {}

    def test_a_file_that_is_missing_or_bad_is_refused_by_field_and_place(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"balancer.yaml:1: estimators.profiles\[0\]: .*none.yaml: cannot be read"
        ):
            load(config_file(tmp_path, "none.yaml"))
        (tmp_path / "bad.yaml").write_text("device: A100\n")
        with pytest.raises(ConfigError, match=r"estimators.profiles\[0\]: .*bad.yaml: measured_at: .*is missing"):
            load(config_file(tmp_path, "bad.yaml"))

    def test_two_files_may_not_profile_the_same(self, tmp_path: Path) -> None:
        write(tmp_path / "a.yaml", profiled((1, 0.01)))
        write(tmp_path / "b.yaml", profiled((1, 0.02)))
        with pytest.raises(ConfigError, match=r"profiles\[1\]: .*profiles m on A100, as a file before it does"):
            load(config_file(tmp_path, "a.yaml", "b.yaml"))
