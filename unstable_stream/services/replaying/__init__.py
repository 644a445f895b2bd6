"""History in its original order: to a log, a plug-in, standard output, or a learner."""
