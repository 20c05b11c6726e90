"""The command behind its help: a Hydra application, whose command line is checked before Hydra sees it.

Nothing heavy is imported before a run begins, so that mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lookahead_bench.commandline import preflight, rewrite
from lookahead_bench.config import CONF, register_methods
from lookahead_bench.errors import InputError

INTERRUPTED = 130


class JobFailed(Exception):
    """A job of a multirun came to an end with an exit status other than 0."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _job(config: DictConfig) -> None:
    from lookahead_bench.command import run_to_status

    hydra_config = HydraConfig.get()
    if hydra_config.mode is not RunMode.MULTIRUN:
        sys.exit(run_to_status(config))
    print(f"\njob {hydra_config.job.num}: {' '.join(hydra_config.overrides.task)}", flush=True)
    # The other jobs go on; Hydra hands the first failure on once all have run.
    if status := run_to_status(config):
        raise JobFailed(status)


def main() -> None:
    """Run the command and exit with its status."""
    # Otherwise Hydra prints a failure its own way and always exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        argv = rewrite(sys.argv[1:])
        preflight(argv)
        sys.argv[1:] = argv
        register_methods()
        _job()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except JobFailed as failure:
        sys.exit(failure.status)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on where it stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
