"""The running application: a pure heart (dispatch, edges, generations) in a thin shell that reads, runs and commits."""
