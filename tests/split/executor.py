"""Runs a plan as an engine would, on exact integers, and refuses everything an engine could not do."""

from mindspore_zb.split import plan_passes


class ExecutionError(Exception):
    """The plan asks for something an engine cannot do, or must not do."""


def require(condition, message):
    """Raise :class:`ExecutionError` unless ``condition`` holds."""
    if not condition:
        raise ExecutionError(message)


class SplitRun:
    """One split backward of ``graph``: :meth:`run_dx` once, then :meth:`run_group` for each group in any order.

    What a node saved in the forward can be lost: a freed node loses it when it runs, all other closure nodes but the
    boundaries of dw lose it after dx, and a group's nodes and boundaries lose it when the group has run.

    Attributes:
        gradients: ``{slot: gradient}`` of every leaf that got one so far.
    """

    def __init__(self, graph, plan, factors, freed=(), eager=(), passes=None):
        self.graph, self.plan, self.factors = graph, plan, factors
        self.freed, self.eager = set(freed), set(eager)
        self.passes = plan_passes(graph, plan, freed, eager) if passes is None else passes
        self.gradients = {}
        self.ran = []
        self._closure = set(plan.closure)
        self._inputs = {leaf for leaf in graph.inputs if leaf is not None}
        self._saved = set(range(len(graph.edges)))
        self._captured = {}
        self._caught = {}
        self._starts = {boundary.node for group in plan.groups for boundary in group.boundaries} - self.eager

    def run_dx(self):
        """All passes in their order; then only what dw needs stays."""
        for (node, slot), gradient in zip(self.graph.roots, self.factors.output_gradients(self.graph)):
            if node in self._inputs and node in self._closure:
                self._add(self.gradients.setdefault(node, {}), slot, gradient)
            elif node in self._closure:
                self._add(self._caught, (node, slot), gradient)
        for one in self.passes:
            self._run_pass(one)
        late = [target for target in self._caught if target[0] in self._closure]
        require(not late, f"the gradient caught for {late} is never used")
        require(set(self.ran) == self._closure - self._inputs, f"dx ran {sorted(self.ran)}")
        self._saved -= self._closure - self._starts

    def _run_pass(self, one):
        cuts = {(cut.node, cut.index): cut.target for cut in one.cuts}
        require(len(cuts) == len(one.cuts), "an edge is cut twice")
        arrived = set()

        def follow(node):
            require(node in self._closure, f"dx runs node {node}, which is not its own")
            require((node in self.freed) == one.frees, f"node {node} runs in a pass of the wrong kind")
            return [(index, edge) for index, edge in enumerate(self.graph.edges[node])
                    if edge is not None and (node, index) not in cuts
                    and edge[0] in self._closure and edge[0] not in self._inputs]

        def run(node, gradients):
            if node in self._starts:
                self._captured[node] = dict(gradients)
            for index, edge in enumerate(self.graph.edges[node]):
                if (node, index) in cuts:
                    require(cuts.pop((node, index)) == edge, f"edge {index} of node {node} has another target")
                    self._add(self._caught, edge, self.factors.along(node, index, gradients))
                    arrived.add(edge)
                elif edge is not None and edge[0] in self._inputs:
                    self._add(self.gradients.setdefault(edge[0], {}), edge[1],
                              self.factors.along(node, index, gradients))
                    arrived.add(edge)
            if one.frees:
                self._saved.remove(node)

        self._flow({target: self._take(target) for target in one.entries}, follow, run)
        require(not cuts, f"cuts {sorted(cuts)} are of nodes that this pass does not run")
        require(len(set(one.exits)) == len(one.exits) and set(one.exits) == arrived,
                f"exits {one.exits} but gradients arrived at {sorted(arrived)}")

    def run_group(self, number):
        """The dw of one group, from what dx left for it."""
        group = self.plan.groups[number]
        own = set(group.nodes)
        weights = {self.graph.weights[position] for position in group.weights}
        starts = {}
        for target, gradient in zip(self.graph.roots, self.factors.output_gradients(self.graph)):
            if target in group.roots:
                self._add(starts, target, gradient)
        require(set(starts) == set(group.roots), f"roots {group.roots} of the group are no roots of the graph")
        caught = {self.graph.edges[boundary.node][index] for boundary in group.boundaries
                  if boundary.node in self.eager for index in boundary.weight_edges}
        for target in sorted(caught):
            self._add(starts, target, self._take(target))
        for boundary in group.boundaries:
            if boundary.node not in self.eager:
                self._start_from(boundary, starts)
        ran = set()

        def follow(node):
            require(node in own, f"group {number} runs node {node}, which is not its own")
            return [(index, edge) for index, edge in enumerate(self.graph.edges[node])
                    if edge is not None and edge[0] in own]

        def run(node, gradients):
            ran.add(node)
            self._saved.remove(node)
            if node in weights:
                self.gradients[node] = gradients

        self._flow(starts, follow, run)
        require(ran == own, f"group {number} owns {sorted(own)} but ran {sorted(ran)}")

    def _start_from(self, boundary, starts):
        """Run one boundary node of dw: only the edges to weights."""
        node = boundary.node
        require(node in self._saved, f"boundary {node} has freed what it saved")
        self._saved.remove(node)
        for index in boundary.weight_edges:
            self._add(starts, self.graph.edges[node][index],
                      self.factors.along(node, index, self._captured[node]))

    def finish(self):
        """Nothing may be left over once all groups have run."""
        require(not self._caught, f"gradients caught for {sorted(self._caught)} were never used")

    def _flow(self, starts, follow, run):
        """Run everything that ``starts`` leads to, each node once, after all that it waits for."""
        inbox, waiting = {}, {}
        todo = []
        for (node, slot), gradient in starts.items():
            self._add(inbox.setdefault(node, {}), slot, gradient)
            todo.append(node)
        while todo:
            node = todo.pop()
            if node not in waiting:
                require(node in self._saved, f"node {node} has freed what it saved")
                require(node not in self.ran, f"node {node} runs twice")
                waiting[node] = 0
                todo.extend(edge[0] for _, edge in follow(node))
        for node in list(waiting):
            for _, edge in follow(node):
                waiting[edge[0]] += 1
        ready = [node for node, count in waiting.items() if not count]
        while ready:
            node = ready.pop()
            gradients = inbox.pop(node)
            self.ran.append(node)
            for index, edge in follow(node):
                self._add(inbox.setdefault(edge[0], {}), edge[1], self.factors.along(node, index, gradients))
                waiting[edge[0]] -= 1
                if not waiting[edge[0]]:
                    ready.append(edge[0])
            run(node, gradients)
        require(not inbox, f"nodes {sorted(inbox)} wait for ever")

    def _take(self, target):
        require(target in self._caught, f"no gradient was caught for {target}")
        return self._caught.pop(target)

    @staticmethod
    def _add(sums, key, gradient):
        sums[key] = sums.get(key, 0) + gradient


def run_split(graph, plan, factors, freed=(), eager=(), order=None, passes=None):
    """Run dx and then every group, in ``order``; the gradients of the leaves that got one."""
    run = SplitRun(graph, plan, factors, freed, eager, passes)
    run.run_dx()
    for number in range(len(plan.groups)) if order is None else order:
        run.run_group(number)
    run.finish()
    return run.gradients
