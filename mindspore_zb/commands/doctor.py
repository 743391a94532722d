"""``python -m mindspore_zb doctor``: what is there, what will work and what not, and how to mend it."""

import argparse
import json
from dataclasses import asdict

HELP = "versions, device, whether both engines work here, and how to mend what does not; example: doctor --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. 0: all is well; 1: something that is needed is not."""
    from mindspore_zb.health import BAD, examine

    findings = examine()
    bad = [finding for finding in findings if finding.state == BAD]
    if arguments.json:
        print(json.dumps({"good": not bad, "findings": [asdict(finding) for finding in findings]}, indent=1))
    elif len(findings) == 1:
        print(f"{bad[0].what}: {bad[0].found}. To mend it: {bad[0].mend}")
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mend = f" ({finding.mend})" if finding.mend else ""
            print(f"{finding.what.ljust(width)}  {finding.state.ljust(8)}  {finding.found}{mend}")
        print("All works." if not bad else f"Does not work: {', '.join(finding.what for finding in bad)}.")
    return 1 if bad else 0
