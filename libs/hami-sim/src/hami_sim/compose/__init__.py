"""What compose.yaml needs beside the programs themselves: credentials, the first objects, a node in one container.

python -m hami_sim.compose.credentials    before the API server starts
python -m hami_sim.compose.objects        once it runs
python -m hami_sim.compose.node           a simulated node, until told to stop
"""
