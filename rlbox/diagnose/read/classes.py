"""What kind of statement an error is: a wrapper of another, a victim's, a notice of death, or noise.

Whatever none of these words fits may be a root. The words are of programs and libraries, never of one log.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

Class = Literal["root", "relayed", "victim", "death", "noise"]

_RELAYED = (
    # of Python: who caught it somewhere else
    r"\bRayTaskError|\bChildFailedError|\bProcessRaisedException|\bProcessExitedException|\bEngineDeadError|\bRemoteTraceback",
    r"\b(?:BackendCompilerFailed|InductorError|LoweringException|CompilationFailed)\b.*raised:?\s*$|\bRetryError\b",
    r"\bCalledProcessError\b|\bInstantiationException: Error in call to target|\bExceptionGroup: |\bDeploymentFailedError",
    r"^(?:RuntimeError|Exception): (?:Engine core initialization failed|Engine process failed to start|Engine loop has died)",
    r"Engine core initialization failed|Engine process failed to start|EngineCore (?:failed to start|encountered|hit)|MQLLMEngine (?:terminated|is already dead)",
    r"WorkerProc (?:initialization failed|failed to start|hit an exception)|Worker failed with error '|AsyncEngineDeadError|Background loop (?:has errored|is stopped)",
    r"Call to \w+ method failed: |Capture cuda graph failed: |Scheduler hit an exception|hit an exception: ?(?:Traceback|$)",
    r"Exception in worker \S+ while processing method|Error executing method|Error executing job with overrides",
    r"AsyncLLM output_handler failed|Exception in (?:callback|thread|ModelTpServer|ControllerSingle|TpModelWorkerClient)\b",
    r"Initialization failed\. \w+ error: Traceback|Task exception was never retrieved|Unhandled exception: ?$",
    r"RuntimeError: Server process terminated|Rank \d+ scheduler is dead|Initialization failed\. Please see the error messages above",
    # of builds
    r"Error (?:compiling objects for|building) extension|Ninja build failed|error: command '?.{0,300} failed with exit (?:code|status)|ninja: build stopped",
    r"collect2: error: ld returned|subprocess-exited-with-error|metadata-generation-failed|legacy-install-failure",
    r"Failed (?:building wheel|to build `|to build '|to build installable wheels)|Could not build wheels for|did not run successfully|This error originates from a subprocess",
    r"failed to solve: process|process \".{0,2000}\" did not complete successfully|The command '.{0,2000}' returned a non-zero code",
    r"^FAILED: |^make(?:\[\d+\])?: \*\*\*|could not compile `|build script failed|Build step .{1,80} failed|hint: This (?:usually|likely) indicates a problem with the package",
    r"returned non-zero exit status|exited with (?:non-zero )?(?:code|status)|exit(?:ed)? (?:code|status):? ?[1-9]|error_file: ",
    # of launchers
    r"Set the environment variable HYDRA_FULL_ERROR|Job (?:'\S+' )?failed|Job failed due to an application error|Process \S+:$|^Root Cause|^Failures:|For more information|see the (?:stack trace|root cause|error messages?) above",
    r"Root Cause \(first observed failure\)|The deployment failed to start|Failed to update the deployments",
    r"\b500 Internal Server Error|\"code\": ?500|InternalServerError|Internal Server Error$",
    r"During task with name|See above for output",
)
_VICTIM = (
    r"[Cc]onnection (?:was )?(?:forcibly )?(?:reset|closed|aborted) by (?:remote )?(?:peer|host)|ConnectionResetError|ConnectionAbortedError|remote process exited",
    r"[Bb]roken ?[Pp]ipe|failed to recv|recvValue failed|[Ss]ocket closed|[Cc]onnection lost|ncclRemoteError|RemoteDisconnected|ServerDisconnected",
    r"NCCL operations have failed or timed out|collective operation timeout|watchdog got stuck|Heartbeat monitor timed out|To avoid data inconsistency",
    r"unexpected EOF|\bEOFError\b|Stop_waiting response is expected|is likely an indication of another rank|peer .{0,40}(?:dead|gone|exited)",
    r"\bOwnerDiedError|\bObjectLostError|\bReferenceCountingAssertionError|\bObjectFetchTimedOut|\bActorUnavailableError|\bRpcError\b.*(?:UNAVAILABLE|Socket closed)",
    r"Timed out waiting for .{0,80}(?:rank|worker|client|peer|node)|RendezvousClosedError|RendezvousConnectionError|DistNetworkError",
    r"No heartbeat received|lost connection|Connect(?:ion)? (?:call )?(?:refused|failed)|Connection refused",
    r"CancelledError|\bSIGTERM\b|got signal: 15|KeyboardInterrupt",
)
_DEATH = (
    r"exit ?code ?:? ?-?[1-9]\d*\b.*\b(?:pid|rank|local_rank)|failed \(exitcode|exitcode +: -?\d+|died, exit code|died unexpectedly|died with <Signals",
    r"Received (?:Signals\.)?SIG\w+ death signal|death signal|Sending process \d+ closing signal|got signal: \d+|Received sigquit from a child",
    r"core dumped|terminate called|\bAborted\b|\*\*\* Aborted at|Process received signal|is killed by signal|[kK]illed by signal|exited on signal \d+|received signal \d+",
    r"\bActorDiedError|\bRayActorError|\bWorkerCrashedError|\bLocalRayletDiedError|\bNodeDiedError|\bBrokenProcessPool|\bTaskUnschedulable|[Aa]ctor died|[Ww]orker (?:process )?died|worker exit",
    r"The node .{0,80} has been marked dead|A worker died or was killed|SYSTEM_ERROR|UNEXPECTED_SYSTEM_EXIT|Worker exits? (?:unexpectedly|by an unexpected)|raylet.{0,40}(?:died|exited|terminated)",
    r"[kK]illing (?:local|subprocess|remaining)|kill_process_tree|exits with return code = -?[1-9]|Primary job +terminated|^mpirun noticed|MPI_ABORT",
    r"^srun: error: .{0,80}(?:task|Exited)|CANCELLED AT|Terminated\b|Back-off restarting|CrashLoopBackOff|Shutting down due to|shutting down client|shutting down workers",
    r"already dead, terminating server|Closing process \d+ via signal|Failed core proc|Unhandled error|^Killed\b|: +\d+ Killed\b",
)
_NOISE_ANY = (
    r"Exception ignored in|HTTPException|RequestValidationError|ClientDisconnect|BadRequestError|VLLMValidationError",
    r"HandlerFileNotFound|metrics exporter agent",
)
_NOISE = (
    r"^(?:.{0,200}:\d+: )?\w*Warning: |\bUserWarning\b|\bFutureWarning\b|\bDeprecationWarning\b",
    r"\b(?:[rR]etry(?:ing)?\b(?! ?Error)|[rR]etries left|[fF]all(?:ing|s)? ?back|[fF]allback|will be (?:ignored|skipped)|[iI]gnoring|[sS]kipping|[sS]kipped|optional|non-fatal|harmless|gracefully)\b",
    r"\berrors?[:=] ?(?:0|None|null|false|\[\]|\"\")(?:\W|$)|\bfailed[:=] ?0\b|\b0 errors?\b|[nN]o errors?\b|error rate|errors='|error_if_|[eE]rror_rate",
    r"\b4\d\d (?:Bad Request|Not Found|Unprocessable|Too Many|Method Not Allowed)",
    r"pip's dependency resolver does not currently|requires .{1,80} but you have .{1,80} which is incompatible",
    r"leaked (?:semaphore|shared_memory)|resource_tracker|destroy_process_group|process group has NOT been destroyed|cannot be preloaded",
    r"Logging error|file_system_monitor|error recovery|[eE]rror handl|on_error|raise_error|No customer script|function_loader",
    r"Plugin load .*returned|No plugin found|Could not find: libnccl|Unable to register cu\w+ factory|TF-TRT Warning|computation placer already registered",
    r"Error in cpuinfo|failed to (?:lookup|get) (?:sysfs|numa)|\bnot (?:a )?fatal\b|usage[_ ]stat",
)


def class_of(text: str, kind: str = "") -> Class:
    """Return the class of an error by its words: `text` is its line, `kind` its exception's name where it has one."""
    if _compiled(_NOISE_ANY).search(text) or (not kind and _compiled(_NOISE).search(text)):
        return "noise"
    if _compiled(_RELAYED).search(text):
        return "relayed"
    if _compiled(_DEATH).search(text):
        return "death"
    if _compiled(_VICTIM).search(text):
        return "victim"
    return "root"


def is_noise(text: str) -> bool:
    """Whether a line says of itself that it is nothing to stop for."""
    return bool(_compiled(_NOISE).search(text) or _compiled(_NOISE_ANY).search(text))


def relays(text: str) -> bool:
    """Whether a line only says that something else failed."""
    return bool(_compiled(_RELAYED).search(text))


@functools.cache
def _compiled(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{text})" for text in words))
