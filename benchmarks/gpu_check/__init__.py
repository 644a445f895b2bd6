"""Does a machine's GPU run the learner, the engines and a whole run, how fast, and in how much memory?

``python -m benchmarks.gpu_check`` asks this part by part, each in a process of its own, so that one that runs
out of memory or lacks a package takes nothing else with it. It reads the GPU's settings and changes none.
"""
