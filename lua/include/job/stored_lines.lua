--[[ stored_lines: reads the state lines of jobs, from `state` or from `jobs`.

A plain job that has only waited since it was enqueued has no line in `state`, unless its JSON is long. The contents of
its line are in the first line of its value in `jobs`, before the JSON. They stay there when the job gets a line in
`state`; from then on only the line in `state` counts. A job that dies of an error has the error there instead
(include/ends/outcomes), also after it is requeued.

Keys: state jobs
Uses: batch(read_many)
]]

--- Return the state line of a job that has none in `state`, from its value in `jobs`; nil if the value is not that of
--- such a job.
local function waiting_line(value)
  local head = value and value:match('^(task=[^\n]*)\n')
  return head and 'ready ' .. head
end

--- Return the state lines of jobs, in order; false for a job that Redis does not have.
local function read_lines(ids)
  local lines = read_many(state, ids)
  local absent, places = {}, {}
  for i = 1, #ids do
    if not lines[i] then
      absent[#absent + 1], places[#places + 1] = ids[i], i
    end
  end
  local values = read_many(jobs, absent)
  for k = 1, #absent do
    lines[places[k]] = waiting_line(values[k]) or false
  end
  return lines
end
