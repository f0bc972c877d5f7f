"""The only code that runs on hosts: standard library (Python 3.6 and later) and POSIX sh.

``act.agent`` packs this package into one zip file that any interpreter on a host can execute:
``python agent.pyz guard|keeper|rank|watch|tell|list|show|stacks RUNDIR …``. It never imports another package of
ipexctl."""
