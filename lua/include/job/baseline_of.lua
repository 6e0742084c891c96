--[[ baseline_of: writes a job's part of the `baseline` event: its state now, whatever was logged before.

Uses: state(count) emit(quoted)
]]

local function number_or_null(value)
  return value and string.format('%.0f', value) or 'null'
end

--- Return the baseline of one job, as JSON. `job` is its record; nil if Redis does not have the job.
local function baseline_of(id, job)
  if not job then
    return '["' .. id .. '",null]'
  end
  local said = {
    quoted(id), quoted(job.state), quoted(job.task), quoted(job.priority or DEFAULT_PRIORITY),
    count(job, 'attempts'), count(job, 'losses'), number_or_null(job.seq), number_or_null(job.due),
    count(job, 'claim'), count(job, 'failed'), count(job, 'lost'), count(job, 'unknown'),
    quoted(job.fence), quoted(job.by), number_or_null(job.since), quoted(job.reason), quoted(job.lane),
  }
  for i = 1, #TRAITS do
    local name = TRAITS[i]
    said[#said + 1] = (NUMBERS[name] and number_or_null or quoted)(job[name])
  end
  return '[' .. table.concat(said, ',') .. ']'
end
