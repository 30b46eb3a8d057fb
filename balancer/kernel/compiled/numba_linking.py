"""How numba's code is linked and optimised.

numba optimises each function, and makes machine code of it, and does both once more in each function that it is linked
into, up to the outermost; there, too, it optimises twice, for the sake of references that our code does not count.
"""

from typing import Any, ClassVar

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _Code(JITCodeLibrary):
    """Optimised once."""

    def _optimize_final_module(self) -> None:
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)


class _LinkedCode(JITCodeLibrary):
    """As numba wrote it until what calls it is optimised."""

    def _optimize_final_module(self) -> None:
        """By what calls it."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class OutermostCompiler(Compiler):
    """For `pipeline_class` of what Python or C calls."""

    _code: ClassVar[type[JITCodeLibrary]] = _Code

    def define_pipelines(self) -> Any:
        """As numba's, in our code."""
        self.state.library = self._code(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


class LinkedCompiler(OutermostCompiler):
    """For that of what only compiled code calls, without numba's wrappers."""

    _code = _LinkedCode

    def define_pipelines(self) -> Any:
        """As numba's, in our code, with nothing for this process to run."""
        self.state.flags.no_compile = True
        return super().define_pipelines()

    def compile_extra(self, function: Any) -> Any:
        """As numba's, and known to what calls it."""
        made = super().compile_extra(function)
        # What Python would call, by which others find it: here no more than something that is equal to nothing else.
        entry_point: Any = [].append
        self.state.targetctx.insert_user_function(entry_point, made.fndesc, [made.library])
        return made._replace(entry_point=entry_point)
