"""Everything that touches vLLM. The harness uses EngineProcess and check_engine only."""

from lookahead_bench.engine.checks import check_engine
from lookahead_bench.engine.process import EngineProcess

__all__ = ["EngineProcess", "check_engine"]
